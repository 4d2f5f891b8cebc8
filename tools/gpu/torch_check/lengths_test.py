"""Tests of the random lengths."""

import itertools
import unittest

from lengths import lengths, requests


class LengthsTest(unittest.TestCase):
    def test_the_same_each_time_and_within_bounds(self):
        drawn = lengths(12, 1024)
        self.assertEqual(drawn, lengths(12, 1024))
        self.assertEqual(max(drawn), 1024)
        self.assertTrue(all(n >= 16 and n % 8 == 0 for n in drawn))
        self.assertGreater(len(set(drawn)), 6)

    def test_requests(self):
        drawn = list(itertools.islice(requests(4096, 512), 500))
        self.assertEqual(drawn, list(itertools.islice(requests(4096, 512), 500)))
        self.assertTrue(all(4 <= prompt <= 4096 and 2 <= output <= 512 for prompt, output in drawn))
        self.assertGreater(len({prompt for prompt, _ in drawn}), 100)


if __name__ == "__main__":
    unittest.main()
