"""Chooses how many steps are timed, and times them."""

import time


class Pace:
    """Until the time is over, or exactly as many steps as the first allocator made: peaks can be
    compared only where the same was done. Even then there is an end, well before the
    launcher takes the worker for hung."""

    PATIENCE, SLACK = 3, 20

    def __init__(self, seconds, steps=None, least=5, most=200, began=None, clock=time.monotonic):
        self.seconds, self.steps, self.least, self.most = seconds, steps, least, most
        self.clock = clock
        self.began = clock() if began is None else began

    def more(self, done):
        spent = self.clock() - self.began
        if self.steps is not None:
            late = spent > self.PATIENCE * self.seconds + self.SLACK
            return done < self.steps and (done < self.least or not late)
        return done < self.least or (done < self.most and spent < self.seconds)


def timed(step, pace, wait, after_each, clock=time.perf_counter):
    """Seconds of each step; the device has nothing to do when a step begins and when it ends."""
    seconds = []
    while pace.more(len(seconds)):
        wait()
        begin = clock()
        step()
        wait()
        seconds.append(clock() - begin)
        after_each()
    return seconds
