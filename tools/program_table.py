#!/usr/bin/env python3
"""Runs other people's programs and their own tests without and with `stillmap run`, and compares test by test.

    tools/program_table.py [--libraries FOLDER] [--stillmap COMMAND] [--work FOLDER] [--table FILE] [CLIENT...]

The clients are those of hostcuda/clients/run.py, which installs them from PyPI (8 GB for all) and runs them on hostcuda.
FOLDER of --libraries is what hostcuda/python/wheel.sh --stage-only writes, default out/wheel/source/stillmap_hostcuda;
COMMAND is default bazel-bin/tools/stillmap, which has the preload beside it. What `--stats` said is beside each log below
--work (out/clients). The table is Markdown, and goes to stdout or --table.

Exit status: 0 when the same tests pass both times, or each difference is in EXPECTED; 1 when one is not; 2 when nothing
could be run.
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
RUN = ROOT / "hostcuda/clients/run.py"

# (pattern of "client: test", why it fails with Stillmap only)
EXPECTED = []

# What the driver served; the rest of the names is that of the counter.
KINDS = {"own_mappings": "mapped by the program", "graph_memory": "in a captured graph"}

Row = collections.namedtuple("Row", "client command without with_ only_with only_without served peak passed")


def run_all(options, clients, outcomes, prefix):
    # Its status says whether failures are explained, which is its own matter.
    subprocess.run([sys.executable, RUN, "--libraries", options.libraries, "--work", options.work, "--outcomes", outcomes,
                    "--table", outcomes.with_suffix(".md"), "--prefix", prefix, *clients], check=False)
    return json.loads(outcomes.read_text()) if outcomes.exists() else []


def tests_of(failed):
    """The names of tests, without what pytest says of the failure."""
    return {test.split(" - ")[0] if "::" in test else test for test in failed}


def read_stats(path):
    """Allocations served, the most bytes of them at once, and what the driver served: {kind: (calls, bytes)}."""
    served, peak, passed = 0, 0, collections.Counter()
    if path.exists():
        for process in json.loads(path.read_text()):
            served += sum(device["allocations"] for device in process["devices"])
            peak = max([peak, *(device["live_peak_bytes"] for device in process["devices"])])
            passed.update({kind: did["calls"] for kind, did in process["passed_on"].items() if did["calls"]})
    return served, peak, dict(passed)


def compare(before, after):
    """One row for each command. Commands that ran in one of the two only are left out."""
    rows, known = [], {(one["client"], one["command"]): one for one in before}
    for one in after:
        other = known.get((one["client"], one["command"]))
        if other is None:
            continue
        ours, theirs = tests_of(one["failed"]), tests_of(other["failed"])
        rows.append(Row(one["client"], one["command"], other, one, sorted(ours - theirs), sorted(theirs - ours),
                        *read_stats(pathlib.Path(one["log"] + ".stats"))))
    return rows


def explain(client, test):
    for pattern, reason in EXPECTED:
        if re.search(pattern, "%s: %s" % (client, test)):
            return reason
    return None


def size(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return "%.3g %s" % (count, unit)
        count /= 1024
    return "%.3g GiB" % count


def table(rows):
    lines = ["| client | what ran | tests | passed without | passed with | served | at most live | by the driver |",
             "|---|---|---:|---:|---:|---:|---:|---|"]
    for r in rows:
        tests = r.without["passed"] + r.without["skipped"] + len(r.without["failed"])
        passed = ", ".join("%d %s" % (calls, KINDS.get(kind, kind.replace("_", " "))) for kind, calls in r.passed.items())
        lines.append("| %s | %s | %d | %d | %d | %s | %s | %s |" % (
            r.client, r.command, tests, r.without["passed"], r.with_["passed"], "{:,}".format(r.served), size(r.peak),
            passed or "none"))
    return "\n".join(lines) + "\n"


def differences(rows):
    """What is not the same, in words, and how much of it has no explanation."""
    lines, unexplained = [], 0
    for r in rows:
        for test in r.only_with:
            reason = explain(r.client, test)
            unexplained += reason is None
            lines.append("%s: fails with Stillmap only: %s (%s)" % (r.client, test, reason or "**unexplained**"))
        lines += ["%s: fails without Stillmap only: %s" % (r.client, test) for test in r.only_without]
        if r.without["skipped"] != r.with_["skipped"]:
            unexplained += 1
            lines.append("%s: %s: %d tests skipped, with Stillmap %d" % (r.client, r.command, r.without["skipped"],
                                                                         r.with_["skipped"]))
    return lines, unexplained


def main():
    parser = argparse.ArgumentParser(description="Compares other people's tests without and with `stillmap run`.")
    parser.add_argument("--libraries", type=pathlib.Path, default=ROOT / "out/wheel/source/stillmap_hostcuda")
    parser.add_argument("--stillmap", type=pathlib.Path, default=ROOT / "bazel-bin/tools/stillmap")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "out/clients")
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="the beginning of a name; default: all")
    options = parser.parse_args()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    # On hostcuda each page that others can map takes a file descriptor, so that it is not the default there.
    prefix = "'%s' run --quiet --ipc on --stats {}.stats --" % options.stillmap.resolve()
    found = []
    for name, command in (("without", ""), ("with", prefix)):
        outcomes = options.work / (name + ".json")
        outcomes.unlink(missing_ok=True)
        for stats in options.work.glob("*/log*.stats"):
            stats.unlink()
        found.append(run_all(options, options.clients, outcomes, command))
    rows = compare(*found)
    if not rows:
        print("program_table: nothing ran", file=sys.stderr)
        return 2
    lines, unexplained = differences(rows)
    if options.table:
        options.table.write_text(table(rows))
    else:
        print(table(rows))
    print("\n".join(lines or ["The same tests pass without and with Stillmap."]))
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
