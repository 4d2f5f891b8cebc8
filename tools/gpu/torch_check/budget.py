"""Time limits of the parts, so that all of them end within the given time."""

import time


class Budget:
    """Seconds shared out by weights. What one part leaves over, or takes too much, the later ones
    share; so the sum holds without anything being stopped."""

    def __init__(self, seconds, weights, clock=time.monotonic):
        self.clock = clock
        self.end = clock() + seconds
        self.waiting = dict(weights)

    def left(self):
        return max(0.0, self.end - self.clock())

    def begin(self, name):
        """The share of the part that begins now."""
        share = self.waiting[name] / sum(self.waiting.values())
        del self.waiting[name]
        return Share(self.left() * share, self.clock)


class Share:
    """One part's seconds, for jobs that follow each other."""

    def __init__(self, seconds, clock=time.monotonic):
        self.seconds, self.clock = seconds, clock
        self.began = clock()

    def left(self):
        return max(0.0, self.seconds - (self.clock() - self.began))

    def spent(self):
        return self.left() <= 0

    def for_one_of(self, jobs):
        """What the next of `jobs` jobs may take."""
        return self.left() / max(1, jobs)
