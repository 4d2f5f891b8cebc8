"""How the results of clients are counted and explained. Nothing is installed."""
import argparse
import pathlib
import tempfile
import unittest

import run

TESTS = """test_a (x.A.test_a) ... ok
ERROR: test_b (x.B.test_b)
FAIL: test_c (x.C.test_c)
Ran 9 tests in 0.1s

FAILED (failures=1, errors=1, skipped=2)
"""


class Counting(unittest.TestCase):
    def test_tests_of_a_client(self):
        self.assertEqual(run.count(TESTS, 1), (5, 2, ["test_b (x.B.test_b)", "test_c (x.C.test_c)"]))
        self.assertEqual(run.count("Ran 3 tests in 1s\n\nOK\n", 0), (3, 0, []))
        self.assertEqual(run.count("Ran 3 tests in 1s\n\nOK (skipped=1)\nterminate called\n", 134),
                         (2, 1, ["exit status 134 after the tests"]))

    def test_subtests_and_expected_failures(self):
        text = ("ERROR: test_b (x.B.test_b) (index=None)\nERROR: test_b (x.B.test_b) [message] (index=slice(3, 8, None))\n"
                "Ran 9 tests in 0.1s\n\nFAILED (errors=2, skipped=1, expected failures=2)\n")
        self.assertEqual(run.count(text, 1), (5, 3, ["test_b (x.B.test_b)"]))

    def test_a_program_is_one_test(self):
        self.assertEqual(run.count("some output", 0), (1, 0, []))
        self.assertEqual(run.count("some output", 139), (0, 0, ["exit status 139: some output"]))
        self.assertEqual(run.count("", 139), (0, 0, ["exit status 139"]))

    def test_tests_of_pytest(self):
        text = ("FAILED a.py::A::test_x - assert 0\nERROR b.py::test_y - RuntimeError\n"
                "2 failed, 6 passed, 3 skipped, 1 xfailed in 18.56s\n")
        self.assertEqual(run.count(text, 1), (6, 4, ["a.py::A::test_x - assert 0", "b.py::test_y - RuntimeError"]))
        self.assertEqual(run.count("===== 5 passed, 1 warning in 0.12s =====\n", 0), (5, 0, []))

    def test_what_nobody_has_explained_stays_so(self):
        rules = [("test_b", "a reason")]
        self.assertEqual(run.explain("test_b (x.B)", rules), "a reason")
        self.assertIsNone(run.explain("exit status 139", rules))

    def test_a_prefix_names_the_log(self):
        options = argparse.Namespace(prefix="trace --to {}.out 'a b' --")
        self.assertEqual(run.prefix(options, pathlib.Path("log0")), ["trace", "--to", "log0.out", "a b", "--"])
        self.assertEqual(run.prefix(argparse.Namespace(prefix=""), pathlib.Path("log0")), [])

    def test_the_table_has_every_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder) / "table.md"
            run.write(table, [("client 1", "tests", 5, 2, 2)], [("client 1", "a reason", 2)])
            text = table.read_text()
        self.assertIn("| client 1 | tests | 5 | 2 | 2 |", text)
        self.assertIn("| client 1 | a reason | 2 |", text)
        self.assertNotIn("Each ran under", text)

    def test_the_table_names_a_prefix(self):
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder) / "table.md"
            run.write(table, [], [], "trace --")
            self.assertIn("Each ran under `trace --`.", table.read_text())


if __name__ == "__main__":
    unittest.main()
