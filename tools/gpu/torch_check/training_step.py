"""One training step of a usual training loop."""

import models
from lengths import lengths


class Training:
    """A model with its optimizer. `most` is the longest text; variable: each step has another
    length, which is what breaks an allocator's free memory into pieces."""

    WARM_UP = 3
    DRAWN = 12  # lengths, which then come again

    def __init__(self, torch, device, model, size, batch, variable, checkpointing, graph=False):
        self.torch, self.device, self.model_name, self.size = torch, device, model, size
        self.batch, self.checkpointing, self.graph = batch, checkpointing, graph
        torch.manual_seed(1)
        build = models.gpt2 if model == "gpt2" else models.llama
        self.model = build(torch, size, device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, foreach=True, capturable=graph
        )
        most = size["length"]
        self.lengths = lengths(self.DRAWN, most) if variable else [most]
        self.done = 0

    def tokens(self):
        length = self.lengths[self.done % len(self.lengths)]
        shape = (self.batch, length + 1)
        return self.torch.randint(0, self.size["vocabulary"], shape, device=self.device)

    def loss(self, tokens):
        # Capturing allows no cache of weights that were cast.
        with models.mixed_precision(self.torch, self.model_name, self.device, cache=not self.graph):
            logits = self.model(tokens[:, :-1], self.checkpointing)
            return self.torch.nn.functional.cross_entropy(
                logits.float().flatten(0, 1), tokens[:, 1:].flatten()
            )

    def step_on(self, tokens):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(tokens)
        loss.backward()
        self.optimizer.step()

    def step(self):
        self.step_on(self.tokens())
        self.done += 1


def captured(training):
    """A step as a CUDA graph: what it takes to run it again. As PyTorch's notes say: some steps
    on a side stream first, and what is captured reads its input from one place."""
    torch = training.torch
    tokens = training.tokens()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(training.WARM_UP):
            training.step_on(tokens)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    training.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        training.step_on(tokens)

    def replay():
        tokens.copy_(training.tokens())
        graph.replay()

    return replay
