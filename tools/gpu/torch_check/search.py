"""Finds the largest number that passes an expensive trial, with few trials."""


def largest(fits, hint, most, step=1, more_time=lambda: True):
    """(the largest that was seen to pass, 0 for none; the smallest that was seen to fail, or None).
    They are neighbours unless `most` passes or the time is over. Begins at the hint and goes away
    from it in doubling steps, since a hint is the answer for something alike."""
    good, bad, at = 0, None, max(1, min(hint, most))
    while more_time():
        if fits(at):
            good = at
        else:
            bad = at
        if good >= most or (bad is not None and bad - good <= 1):
            break
        if bad is None:
            at, step = min(most, good + step), 2 * step
        elif good == 0:
            at, step = max(1, bad - step), 2 * step
        else:
            at = (good + bad) // 2
    return good, bad
