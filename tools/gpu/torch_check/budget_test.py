"""Tests of the parts' time limits."""

import unittest

from budget import Budget, Share


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class BudgetTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.budget = Budget(100, {"a": 3, "b": 1, "c": 1}, self.clock)

    def test_parts_get_what_they_weigh(self):
        self.assertAlmostEqual(self.budget.begin("a").seconds, 60)

    def test_what_is_left_over_goes_to_the_later_parts(self):
        self.budget.begin("a")
        self.clock.now += 20
        self.assertAlmostEqual(self.budget.begin("b").seconds, 40)

    def test_what_was_taken_too_much_is_taken_from_the_later_parts(self):
        self.budget.begin("a")
        self.clock.now += 90
        self.assertAlmostEqual(self.budget.begin("b").seconds, 5)
        self.clock.now += 50
        self.assertEqual(self.budget.begin("c").seconds, 0)

    def test_the_last_part_gets_everything(self):
        for name in "ab":
            self.budget.begin(name)
        self.clock.now += 1
        self.assertAlmostEqual(self.budget.begin("c").seconds, 99)

    def test_jobs_share_what_is_left(self):
        share = Share(12, self.clock)
        self.assertAlmostEqual(share.for_one_of(4), 3)
        self.clock.now += 9
        self.assertAlmostEqual(share.for_one_of(3), 1)
        self.assertFalse(share.spent())
        self.clock.now += 9
        self.assertTrue(share.spent())
        self.assertEqual(share.for_one_of(0), 0)


if __name__ == "__main__":
    unittest.main()
