#!/usr/bin/env python3
"""Turns a gtest report of conformance_test (XML or JSON) into a markdown table.

One row per numbered assertion: what is expected, how it came out, what the driver answered.
Expectations are read from tests/system/conformance/README.md. Needs Python 3.7 and nothing else.
"""
import argparse
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

NUMBERED = re.compile(r"^a(\d\d)_")
PROPERTY = re.compile(r"^a(\d\d)$")
README = pathlib.Path(__file__).resolve().parents[2] / "tests" / "system" / "conformance" / "README.md"


class Case:
    """One test case of the report."""

    def __init__(self, suite, name, outcome, reason, properties):
        self.suite = suite
        self.name = name
        self.outcome = outcome  # passed, failed or skipped
        self.reason = reason    # of a skip or a failure
        self.properties = properties

    def number(self):
        found = NUMBERED.match(self.name)
        return int(found.group(1)) if found else None


def skip_reason(text):
    """gtest writes 'file:line' or 'Skipped' before the reason: the last line that is neither."""
    lines = [l.strip() for l in (text or "").splitlines()]
    lines = [l for l in lines if l and l != "Skipped" and not re.match(r"^\S+\.(cpp|h):\d+", l)]
    return lines[-1] if lines else "no reason given"


def failure_reason(text):
    lines = [l.strip() for l in (text or "").splitlines()]
    lines = [l for l in lines if l and l != "Failed" and not re.match(r"^\S+\.(cpp|h):\d+", l)]
    return " ".join(lines[:4]) if lines else "no message"


def cases_of_xml(text):
    for case in xml.fromstring(text).iter("testcase"):
        failures = [f.get("message") or f.text for f in case.findall("failure")]
        skipped = case.find("skipped")
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        # gtest before 1.8.1 wrote properties as attributes of the case.
        properties.update({k: v for k, v in case.attrib.items() if PROPERTY.match(k)})
        if failures:
            outcome, reason = "failed", failure_reason(failures[0])
        elif skipped is not None:
            outcome, reason = "skipped", skip_reason(skipped.get("message") or skipped.text)
        elif case.get("status") == "notrun":
            continue
        else:
            outcome, reason = "passed", ""
        yield Case(case.get("classname"), case.get("name"), outcome, reason, properties)


def cases_of_json(text):
    return cases_of_found(json.loads(text))


def cases_of_found(report):
    for suite in report.get("testsuites", []):
        for case in suite.get("testsuite", []):
            properties = {k: v for k, v in case.items() if isinstance(v, (str, int))}
            if case.get("failures"):
                outcome, reason = "failed", failure_reason(case["failures"][0].get("failure"))
            elif case.get("result") == "SKIPPED":
                outcome, reason = "skipped", properties.get("skip_reason", "no reason given")
            elif case.get("status") == "NOTRUN":
                continue
            else:
                outcome, reason = "passed", ""
            yield Case(case.get("classname"), case.get("name"), outcome, reason, properties)


def read_report(path):
    text = sys.stdin.read() if path == "-" else pathlib.Path(path).read_text(encoding="utf-8")
    if text.lstrip().startswith("{"):
        return list(cases_of_json(text))
    return list(cases_of_xml(text))


def read_expectations(path):
    """number -> (expectation, evidence), from the table of the suite's README."""
    rows = {}
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and cells[0].isdigit():
            rows[int(cells[0])] = (cells[1], cells[2])
    return rows


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def outcome_of(cases):
    """The worst of several cases of one number; a skip counts only if nothing else ran."""
    seen = {c.outcome for c in cases}
    for outcome in ("failed", "passed", "skipped"):
        if outcome in seen:
            return outcome
    return "not run"


def numbered_table(cases, expectations):
    by_number = {}
    for case in cases:
        if case.number() is not None:
            by_number.setdefault(case.number(), []).append(case)
    lines = ["| # | expectation | evidence | outcome | recorded |", "|---|---|---|---|---|"]
    for number in sorted(set(expectations) | set(by_number)):
        expectation, evidence = expectations.get(number, ("?", "?"))
        mine = by_number.get(number, [])
        key = "a%02d" % number
        told = [c.properties[key] for c in mine if key in c.properties]
        told += ["%s: %s" % (c.outcome, c.reason) for c in mine if c.reason]
        told = list(dict.fromkeys(told))  # several tests of one number may say the same
        outcome = outcome_of(mine)
        lines.append("| %d | %s | %s | %s | %s |" % (
            number, cell(expectation), cell(evidence),
            "**failed**" if outcome == "failed" else outcome, cell("; ".join(told))))
    return lines


def other_table(cases):
    lines = ["| test | outcome | |", "|---|---|---|"]
    for case in cases:
        if case.number() is None:
            lines.append("| %s.%s | %s | %s |" % (
                case.suite, case.name,
                "**failed**" if case.outcome == "failed" else case.outcome, cell(case.reason)))
    return lines


def heading(cases):
    properties = {}
    for case in cases:
        if case.name == "is_named_in_the_report":
            properties = case.properties
    lines = []
    if "device" in properties:
        lines.append("%s, %s MiB, driver version %s, devices: %s" % (
            properties["device"], properties.get("memory_mib", "?"),
            properties.get("driver_version", "?"), properties.get("devices", "?")))
    if "hostcuda" in properties:
        lines.append("hostcuda: `%s`" % properties["hostcuda"])
    count = {o: sum(c.outcome == o for c in cases) for o in ("passed", "failed", "skipped")}
    lines.append("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % count)
    return lines


def page(cases, expectations):
    lines = ["# Conformance", ""]
    for line in heading(cases):
        lines += [line, ""]
    lines += numbered_table(cases, expectations)
    lines += ["", "## Beyond the list", ""] + other_table(cases)
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", help="gtest's XML or JSON report of conformance_test; - for stdin")
    parser.add_argument("--expectations", default=str(README), metavar="README",
                        help="the suite's README with its table (default: %(default)s)")
    parser.add_argument("--check", action="store_true",
                        help="exit 1 if a numbered assertion is missing from the report")
    arguments = parser.parse_args()
    try:
        expectations = read_expectations(arguments.expectations)
        cases = read_report(arguments.report)
    except (OSError, ValueError, xml.ParseError) as error:
        print("conformance_table.py: %s" % error, file=sys.stderr)
        return 2
    if not expectations:
        print("conformance_table.py: no table in %s" % arguments.expectations, file=sys.stderr)
        return 2
    print(page(cases, expectations))
    if arguments.check:
        missing = sorted(set(expectations) - {c.number() for c in cases})
        if missing:
            print("conformance_table.py: not in the report: %s" % missing, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
