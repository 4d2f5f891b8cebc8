"""Tests of the search for the largest batch."""

import unittest

from search import largest


class SearchTest(unittest.TestCase):
    def search(self, answer, hint, most=1000, step=1, trials=None):
        tried = []

        def fits(n):
            tried.append(n)
            return n <= answer

        more = (lambda: len(tried) < trials) if trials else (lambda: True)
        return (*largest(fits, hint, most, step, more), tried)

    def test_finds_it_from_every_hint(self):
        for answer in (1, 2, 7, 63, 64, 65, 999):
            for hint in (1, 5, 64, 1000):
                for step in (1, 4):
                    good, bad, tried = self.search(answer, hint, step=step)
                    self.assertEqual((good, bad), (answer, answer + 1), (answer, hint, step))
                    self.assertEqual(len(tried), len(set(tried)), "nothing is tried twice")

    def test_a_hint_that_is_the_answer_costs_two_trials(self):
        self.assertEqual(self.search(50, 50)[2], [50, 51])

    def test_nothing_fits(self):
        self.assertEqual(self.search(0, 40)[:2], (0, 1))

    def test_everything_fits(self):
        self.assertEqual(self.search(5000, 40)[:2], (1000, None))

    def test_a_hint_over_the_most(self):
        self.assertEqual(self.search(5000, 4000)[2], [1000])

    def test_time_ends_it(self):
        good, bad, tried = self.search(500, 40, trials=3)
        self.assertEqual((good, bad, len(tried)), (43, None, 3))
        self.assertEqual(self.search(5, 40, trials=1)[:2], (0, 40))


if __name__ == "__main__":
    unittest.main()
