"""Tests of the test counts that ./test prints: a failed run must never look like a success."""

import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import summary  # noqa: E402

GOOD = """<testsuites name="AllTests" tests="3" failures="0">
<testsuite name="a">
<testcase name="one" status="run" result="completed"/>
<testcase name="two" status="run" result="skipped">
  <skipped message="tests/a_test.cpp:5&#x0A;no GPU here"/></testcase>
<testcase name="three" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
BAD = """<testsuites name="AllTests"><testsuite name="a">
<testcase name="one" status="run"><failure message="f.cpp:1&#x0A;no"/></testcase>
</testsuite></testsuites>"""
BAZELS_OWN = """<testsuites><testsuite name="a"><testcase name="a" status="run"/></testsuite>
</testsuites>"""


class SummaryTest(unittest.TestCase):
    def run_summary(self, results, bazel_status=0, extra=()):
        with tempfile.TemporaryDirectory() as folder:
            lines = [json.dumps(event) for event in extra]
            for index, (status, xml, log) in enumerate(results):
                outputs = []
                for name, text in (("test.xml", xml), ("test.log", log)):
                    if text is not None:
                        path = os.path.join(folder, "%d-%s" % (index, name))
                        with open(path, "w", encoding="utf-8") as file:
                            file.write(text)
                        outputs.append({"name": name, "uri": "file://" + path})
                lines.append(json.dumps({
                    "id": {"testResult": {"label": "//t:%d" % index, "run": 1}},
                    "testResult": {"status": status, "testActionOutput": outputs}}))
            out = io.StringIO()
            code = summary.report(summary.read_events(lines), bazel_status, out)
            return code, out.getvalue().splitlines()

    def test_counts_cases_and_gives_reasons(self):
        code, lines = self.run_summary([("PASSED", GOOD, ""), ("PASSED", GOOD, "")])
        self.assertEqual(code, 0)
        self.assertEqual(lines[-1], "2 passed, 0 failed, 2 skipped")
        self.assertIn("      2  no GPU here", lines)

    def test_repeats_notes(self):
        _, lines = self.run_summary([("PASSED", GOOD, "note: 12 points\nnothing\n")])
        self.assertIn("  12 points", lines)

    def test_failed_case(self):
        code, lines = self.run_summary([("PASSED", GOOD, ""), ("FAILED", BAD, "")], 3)
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 1 skipped")

    def test_crash_after_passing_cases(self):
        code, lines = self.run_summary([("FAILED", GOOD, "Killed")], 3)
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 1 skipped"))

    def test_crash_without_results(self):
        code, lines = self.run_summary([("FAILED", BAZELS_OWN, ""), ("PASSED", GOOD, "")], 3)
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 1 skipped"))

    def test_program_that_ended_early_with_status_zero(self):
        code, lines = self.run_summary([("PASSED", BAZELS_OWN, ""), ("PASSED", GOOD, "")])
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 1 skipped"))

    def test_missing_file(self):
        code, lines = self.run_summary([("PASSED", None, None), ("PASSED", GOOD, "")])
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 1 skipped"))

    def test_target_that_was_not_built(self):
        event = {"id": {"targetCompleted": {"label": "//x:y"}}, "aborted": {"reason": "INCOMPLETE"}}
        code, lines = self.run_summary([("PASSED", GOOD, "")], 1, [event])
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 1 skipped"))

    def test_bazel_that_failed_without_a_word(self):
        code, lines = self.run_summary([("PASSED", GOOD, "")], 37)
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 1 skipped"))

    def test_nothing_passed(self):
        code, lines = self.run_summary([], 4)
        self.assertEqual((code, lines[-1]), (1, "0 passed, 0 failed"))


if __name__ == "__main__":
    unittest.main()
