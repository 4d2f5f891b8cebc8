#!/usr/bin/env python3
"""Counts the GoogleTest cases of one `bazel test`, from the events that Bazel wrote about it.

Prints what failed, why cases were skipped, and the notes of the tests (lines of their output that
begin with "note: "), then the line that ./test ends with. A target that was not built, a program
that crashed or ran out of time, and one that ended without leaving its results each count as one
failure: nothing is a success because it said nothing.
"""

import argparse
import collections
import json
import sys
import urllib.parse
import xml.etree.ElementTree

TAIL_LINES = 60


class Tally:
    """What happened to all test cases of the run."""

    def __init__(self):
        self.passed = 0
        self.failures = []  # what failed, in words: (one line, details)
        self.skips = collections.Counter()  # reason -> cases
        self.notes = collections.OrderedDict()  # note -> None, in order of appearance

    @property
    def skipped(self):
        return sum(self.skips.values())


def local_path(uri):
    return urllib.parse.unquote(urllib.parse.urlparse(uri).path)


def skip_reason(message):
    """GoogleTest writes `file:line` before the reason."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1 and ":" in lines[0]:
        lines = lines[1:]
    return " ".join(lines) or "no reason given"


def count_cases(xml_text, label, tally):
    """Adds the cases of one program. Returns how many failed, None if these are no results."""
    try:
        root = xml.etree.ElementTree.fromstring(xml_text)
    except xml.etree.ElementTree.ParseError:
        return None
    if root.tag != "testsuites" or root.get("name") != "AllTests":
        return None  # Bazel's own stand-in for a program that wrote nothing
    failed = 0
    for suite in root.iter("testsuite"):
        for case in suite.iter("testcase"):
            name = "%s.%s" % (suite.get("name"), case.get("name"))
            skip = case.find("skipped")
            bad = case.findall("failure") + case.findall("error")
            if bad:
                failed += 1
                details = "\n".join(item.get("message", "") for item in bad)
                tally.failures.append(("%s: %s" % (label, name), details))
            elif skip is not None or case.get("result") == "skipped":
                message = skip.get("message", "") if skip is not None else ""
                tally.skips[skip_reason(message)] += 1
            elif case.get("status") == "run":
                tally.passed += 1
    return failed


def collect_notes(log_path, tally):
    try:
        with open(log_path, encoding="utf-8", errors="replace") as log:
            for line in log:
                if line.startswith("note: "):
                    tally.notes[line[len("note: "):].rstrip()] = None
    except OSError:
        pass


def tail(log_path):
    """The end of a program's output, for failures that no case owns."""
    try:
        with open(log_path or "", encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-TAIL_LINES:])
    except OSError:
        return ""


def take_result(label, result, tally):
    """One test program on one driver."""
    outputs = {item["name"]: local_path(item["uri"])
               for item in result.get("testActionOutput", []) if "uri" in item}
    if "test.log" in outputs:
        collect_notes(outputs["test.log"], tally)
    status = result.get("status", "NO_STATUS")
    failed = None
    if "test.xml" in outputs:
        try:
            with open(outputs["test.xml"], "rb") as xml_file:
                failed = count_cases(xml_file.read(), label, tally)
        except OSError:
            pass
    if status != "PASSED" and not failed:
        tally.failures.append(("%s: %s outside of any case (crash, leak or time limit)"
                               % (label, status.lower()), tail(outputs.get("test.log"))))
    elif failed is None and label.startswith("//examples:"):
        tally.passed += 1  # a whole program that checks itself: its exit status is its result
    elif failed is None:
        tally.failures.append(("%s: ended without leaving its results" % label,
                               tail(outputs.get("test.log"))))


def read_events(lines):
    """The tally of a whole run."""
    tally = Tally()
    latest = {}  # one result per target: with several attempts, the last
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        key = event.get("id", {})
        if "testResult" in key and "testResult" in event:
            shard = (key["testResult"]["label"], key["testResult"].get("shard", 0),
                     key["testResult"].get("run", 0))
            latest[shard] = event["testResult"]
        elif "targetCompleted" in key and not event.get("completed", {}).get("success"):
            tally.failures.append(("%s: not built" % key["targetCompleted"]["label"], ""))
    for (label, _, _), result in sorted(latest.items()):
        take_result(label, result, tally)
    return tally


def report(tally, bazel_status, out):
    # 3: tests failed, which is counted; 4: no tests, which "0 passed" tells.
    if bazel_status not in (0, 3, 4) and not tally.failures:
        tally.failures.append(("bazel ended with status %d" % bazel_status, ""))
    for note in tally.notes:
        print("  " + note, file=out)
    if tally.skips:
        print("Skipped:", file=out)
        for reason, count in sorted(tally.skips.items(), key=lambda item: (-item[1], item[0])):
            print("  %5d  %s" % (count, reason), file=out)
    if tally.failures:
        print("Failed:", file=out)
        for failure, details in tally.failures:
            print("  " + failure, file=out)
            for text in details.splitlines():
                print("      | " + text, file=out)
    if not tally.passed and not tally.failures:
        print("No test case passed: that is no success.", file=out)
    line = "%d passed, %d failed" % (tally.passed, len(tally.failures))
    if tally.skipped:
        line += ", %d skipped" % tally.skipped
    print(line, file=out)
    return 0 if tally.passed and not tally.failures else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("events", help="file that --build_event_json_file wrote")
    parser.add_argument("--bazel-status", type=int, required=True)
    arguments = parser.parse_args()
    with open(arguments.events, encoding="utf-8", errors="replace") as events:
        tally = read_events(events)
    return report(tally, arguments.bazel_status, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
