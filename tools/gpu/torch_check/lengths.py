"""Random lengths of texts and requests, the same in every run."""

import random


def lengths(count, most, seed=7):
    """As texts have them: many short, few long, none over `most`; multiples of 8. The longest of
    all is among them, so that the peak does not hang on how many are drawn."""
    dice = random.Random(seed)
    drawn = [
        min(most, max(16, int(most * dice.lognormvariate(-0.8, 0.6)) // 8 * 8))
        for _ in range(count)
    ]
    drawn[count // 2] = most
    return drawn


def requests(most_prompt, most_output, seed=11):
    """Prompts and answers without an end, log-normal both: (tokens of the prompt, of the
    answer)."""
    dice = random.Random(seed)
    while True:
        prompt = int(most_prompt * dice.lognormvariate(-1.9, 0.9))
        output = int(most_output * dice.lognormvariate(-1.6, 0.7))
        yield min(most_prompt, max(4, prompt)), min(most_output, max(2, output))
