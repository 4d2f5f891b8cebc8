"""Runs the tests of the Python package: run.py [PATTERN...], as in `run.py buffer_test`.

Where Bazel asks for results (XML_OUTPUT_FILE) they are written as GoogleTest writes them, because
tools/build/summary.py counts those.
"""

import os
import pathlib
import sys
import time
import unittest
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).parent


class Result(unittest.TextTestResult):
    """Keeps what happened to each case."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.cases = []  # (test, kind, text, seconds)

    def startTest(self, test):
        self.began = time.monotonic()
        super().startTest(test)

    def keep(self, test, kind, text=""):
        self.cases.append((test, kind, text, time.monotonic() - getattr(self, "began", time.monotonic())))

    def addSuccess(self, test):
        super().addSuccess(test)
        self.keep(test, "run")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.keep(test, "skipped", reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.keep(test, "failure", self._exc_info_to_string(error, test))

    def addError(self, test, error):
        super().addError(test, error)
        self.keep(test, "failure", self._exc_info_to_string(error, test))

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.keep(subtest, "failure", self._exc_info_to_string(error, test))

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.keep(test, "failure", "an unexpected success")


def write_results(cases, path):
    root = xml.Element("testsuites", name="AllTests")
    suites = {}
    for test, kind, text, seconds in cases:
        module, _, name = test.id().partition(".")
        suite = suites.setdefault(module, xml.SubElement(root, "testsuite", name=module)
                                  if module not in suites else None)
        case = xml.SubElement(suite, "testcase", name=name, time="%.3f" % seconds,
                              status="run", result="skipped" if kind == "skipped" else "completed")
        if kind != "run":
            xml.SubElement(case, kind, message=text)
    xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def main():
    # The interpreter's safe path has not this folder; test processes need it too.
    sys.path.insert(0, str(HERE))
    patterns = [a for a in sys.argv[1:] if not a.startswith("-")] or ["*_test"]
    loader, suite = unittest.TestLoader(), unittest.TestSuite()
    for pattern in patterns:
        for file in sorted(HERE.glob(pattern.removesuffix(".py") + ".py")):
            suite.addTests(loader.loadTestsFromName(file.stem))
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=1)
    result = runner.run(suite)
    if path := os.environ.get("XML_OUTPUT_FILE"):
        write_results(result.cases, path)
    passed = sum(kind == "run" for _, kind, _, _ in result.cases)
    failed = sum(kind == "failure" for _, kind, _, _ in result.cases)
    skipped = sum(kind == "skipped" for _, kind, _, _ in result.cases)
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped), flush=True)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
