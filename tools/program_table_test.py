"""How other people's tests are compared. Nothing is installed or run."""

import json
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import program_table  # noqa: E402


def outcome(failed, log="none", client="client 1", passed=5, skipped=1):
    return {"client": client, "command": "tests", "passed": passed, "skipped": skipped, "failed": failed, "log": log}


class Comparing(unittest.TestCase):
    def test_the_same_tests_fail(self):
        rows = program_table.compare([outcome(["a.py::test_x - assert 1.0", "test_b (x.B)"])],
                                     [outcome(["a.py::test_x - assert 2.0", "test_b (x.B)"])])
        self.assertEqual(program_table.differences(rows), ([], 0))

    def test_a_test_that_fails_with_stillmap_only(self):
        rows = program_table.compare([outcome(["test_a (x)"])], [outcome(["test_b (x)"])])
        lines, unexplained = program_table.differences(rows)
        self.assertEqual(unexplained, 1)
        self.assertEqual(lines, ["client 1: fails with Stillmap only: test_b (x) (**unexplained**)",
                                 "client 1: fails without Stillmap only: test_a (x)"])

    def test_what_is_expected(self):
        rows = program_table.compare([outcome([])], [outcome(["test_a (x)"])])
        with unittest.mock.patch.object(program_table, "EXPECTED", [(r"client 1.*test_a", "a reason")]):
            lines, unexplained = program_table.differences(rows)
        self.assertEqual((len(lines), unexplained), (1, 0))

    def test_a_test_that_is_skipped_with_stillmap_only(self):
        rows = program_table.compare([outcome([])], [outcome([], passed=4, skipped=2)])
        self.assertEqual(program_table.differences(rows)[1], 1)

    def test_a_command_that_ran_once_is_no_row(self):
        self.assertEqual(program_table.compare([], [outcome([])]), [])

    def test_the_table(self):
        device = {"allocations": 1200, "live_peak_bytes": 3 << 20}
        passed = {"own_mappings": {"calls": 2, "bytes": 9}, "managed": {"calls": 0, "bytes": 0}}
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log0")
            pathlib.Path(folder, "log0.stats").write_text(
                json.dumps([{"devices": [device], "passed_on": passed}, {"devices": [], "passed_on": passed}]))
            rows = program_table.compare([outcome(["a"])], [outcome(["a"], log=str(log))])
        self.assertIn("| client 1 | tests | 7 | 5 | 5 | 1,200 | 3 MiB | 4 mapped by the program |", program_table.table(rows))


if __name__ == "__main__":
    unittest.main()
