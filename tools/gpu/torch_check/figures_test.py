"""Tests of statistics and of their formatting."""

import unittest

import figures


class FiguresTest(unittest.TestCase):
    def test_percentiles(self):
        values = [5, 1, 4, 2, 3]
        self.assertEqual(figures.median(values), 3)
        self.assertEqual(figures.percentile(values, 0), 1)
        self.assertEqual(figures.percentile(values, 1), 5)
        self.assertAlmostEqual(figures.percentile(values, 0.95), 4.8)
        self.assertEqual(figures.percentile([7], 0.95), 7)
        self.assertIsNone(figures.percentile([], 0.5))

    def test_what_is_not_known_stays_so(self):
        self.assertEqual(figures.ratio(1, 4), 0.25)
        self.assertIsNone(figures.ratio(None, 4))
        self.assertIsNone(figures.ratio(1, 0))
        self.assertIsNone(figures.gigabytes_per_second(1, 0))

    def test_counters_per_step(self):
        self.assertEqual(figures.per_step({"a": 1}, {"a": 5, "b": 1}, 2), {"a": 2})
        self.assertIsNone(figures.per_step(None, {"a": 5}, 2))
        self.assertIsNone(figures.per_step({"a": 1}, {"a": 5}, 0))

    def test_sizes_and_times(self):
        self.assertEqual(figures.human_bytes(0), "0 B")
        self.assertEqual(figures.human_bytes(3 << 20), "3.00 MiB")
        self.assertEqual(figures.human_bytes(2000 << 30), "2000 GiB")
        self.assertEqual(figures.human_bytes(None), "-")
        self.assertEqual(figures.human_seconds(0.0125), "12.50 ms")
        self.assertEqual(figures.human_seconds(2), "2.00 s")

    def test_a_table_lines_up(self):
        rows = [{"what": "a", "bytes": 1024}, {"what": "longer"}]
        self.assertEqual(
            figures.table(rows, ("what", "bytes")),
            ["what    bytes", "a       1.00 KiB", "longer  -"],
        )


if __name__ == "__main__":
    unittest.main()
