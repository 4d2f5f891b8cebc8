"""Tests of the choice of how many steps are timed."""

import unittest

from budget_test import Clock
from pace import Pace, timed


class PaceTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()

    def steps(self, pace, each):
        done = 0
        while pace.more(done):
            self.clock.now += each
            done += 1
        return done

    def test_until_the_time_is_over(self):
        self.assertEqual(self.steps(Pace(10, clock=self.clock), 1), 10)

    def test_never_fewer_than_the_least_nor_more_than_the_most(self):
        self.assertEqual(self.steps(Pace(0, least=4, clock=self.clock), 1), 4)
        self.assertEqual(self.steps(Pace(10, most=20, clock=self.clock), 0.01), 20)

    def test_as_many_as_were_said(self):
        self.assertEqual(self.steps(Pace(10, steps=25, clock=self.clock), 1), 25)

    def test_patience_ends(self):
        self.assertEqual(self.steps(Pace(10, steps=1000, clock=self.clock), 1), 51)

    def test_the_time_before_counts(self):
        pace = Pace(10, began=self.clock.now - 6, clock=self.clock)
        self.assertEqual(self.steps(pace, 0.5), 8)

    def test_the_device_is_waited_for_around_each_step(self):
        seen = []
        seconds = timed(
            lambda: seen.append("step"), Pace(0, steps=2), lambda: seen.append("wait"),
            lambda: seen.append("after"),
        )  # fmt: skip
        self.assertEqual(len(seconds), 2)
        self.assertEqual(seen, ["wait", "step", "wait", "after"] * 2)


if __name__ == "__main__":
    unittest.main()
