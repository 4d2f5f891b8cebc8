#!/usr/bin/env python3
"""Turns the JSON of benchmark runs into one readable table.

tools/bench_table.py [--markdown] FILE...      e.g. out/bench/*.json
"""
import json
import sys

MACHINE = ("cpu", "driver_is", "driver", "driver_version", "device", "hostcuda", "commit", "smoke")
# What Google Benchmark says of every case; the rest of a case is its own counters.
COMMON = {
    "name", "family_index", "per_family_instance_index", "run_name", "run_type", "repetitions",
    "repetition_index", "threads", "iterations", "real_time", "cpu_time", "time_unit",
    "error_occurred", "error_message", "skipped", "skip_message", "label",
    "aggregate_name", "aggregate_unit",
}
NANOSECONDS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def duration(value, unit):
    ns = value * NANOSECONDS[unit]
    for name, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return "%.3g %s" % (ns / size, name) if ns < 1000 * size else "%.0f %s" % (ns / size, name)
    return "%.3g ns" % ns


def number(name, value):
    if name == "bytes_per_second":
        return "%.2f GiB/s" % (value / 2**30)
    if name == "items_per_second":
        return "%.3g/s" % value
    return "%.0f" % value if abs(value) >= 1000 or value == int(value) else "%.3g" % value


def name_of(case):
    """Without what the harness adds to the names: how it was timed and how often."""
    parts = case["name"].split("/")
    ours = ("iterations", "min_time", "threads") if "|" in case["name"] else ("iterations", "min_time")
    return "/".join(p for p in parts
                    if p not in ("manual_time", "real_time") and p.split(":")[0] not in ours)


def rows(report):
    for case in report["benchmarks"]:
        if case.get("error_occurred") or case.get("skipped"):
            yield [name_of(case), "-", case.get("error_message") or case.get("skip_message", "skipped")]
            continue
        counters = ["%s %s" % (k.replace("_per_second", ""), number(k, v))
                    for k, v in case.items() if k not in COMMON]
        yield [name_of(case), duration(case["real_time"], case["time_unit"]), ", ".join(counters)]


def table(lines, markdown):
    head = ["case", "time", "beside it"]
    if markdown:
        out = [head, ["---"] * 3] + lines
        return "\n".join("| %s |" % " | ".join(line) for line in out)
    widths = [max(len(line[i]) for line in [head] + lines) for i in range(2)]
    return "\n".join("%-*s  %*s  %s" % (widths[0], l[0], widths[1], l[1], l[2]) for l in [head] + lines)


def cell(case):
    """The time, and what it is worth in something else measured beside it."""
    if case.get("error_occurred") or case.get("skipped"):
        return "-"
    text = duration(case["real_time"] / case.get("blocks", 1), case["time_unit"])
    if "mutex_ns" in case:
        ns = case["real_time"] * NANOSECONDS[case["time_unit"]] / case.get("blocks", 1)
        text += " (%.3g x)" % (ns / case["mutex_ns"])
    if "calls_a_page" in case:
        text += ", %.3g calls" % case["calls_a_page"]
    return text


def grid(cases, markdown):
    """Cases named `what|by whom`: a row for each what, a column for each whom."""
    rows, columns, cells, notes = [], [], {}, []
    for case in cases:
        row, column = name_of(case).split("|", 1)
        for known, name in ((rows, row), (columns, column)):
            if name not in known:
                known.append(name)
        cells[row, column] = cell(case)
        why = case.get("error_message") or case.get("skip_message")
        note = "%s: %s" % (column, why)
        if why and note not in notes:
            notes.append(note)
    lines = [[""] + columns] + [[r] + [cells.get((r, c), "") for c in columns] for r in rows]
    mutexes = [c["mutex_ns"] for c in cases if "mutex_ns" in c]
    if mutexes:
        notes.insert(0, "(x): times one uncontended std::mutex locked and unlocked, measured before each "
                     "case: %.1f to %.1f ns" % (min(mutexes), max(mutexes)))
    if any("calls_a_page" in c for c in cases):
        notes.insert(0, "calls: of the driver, for each page")
    if markdown:
        lines.insert(1, ["---"] * len(lines[0]))
        text = "\n".join("| %s |" % " | ".join(line) for line in lines)
        return "\n\n".join([text] + notes)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = "\n".join("  ".join([line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:])])
                     for line in lines)
    return "\n".join([text] + notes)


def tables(report, markdown):
    """All of a report's cases: a grid of those named `what|by whom`, a list of the others."""
    in_grid = [c for c in report["benchmarks"] if "|" in c["name"]]
    lines = list(rows({"benchmarks": [c for c in report["benchmarks"] if "|" not in c["name"]]}))
    texts = [grid(in_grid, markdown)] if in_grid else []
    return "\n\n".join(texts + ([table(lines, markdown)] if lines else []))


def main(arguments):
    markdown = "--markdown" in arguments
    files = [a for a in arguments if a != "--markdown"]
    if not files or any(a.startswith("-") for a in files):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    said = None
    for path in files:
        try:
            with open(path, encoding="utf-8") as f:
                report = json.load(f)
            machine = {k: report["context"][k] for k in MACHINE if k in report["context"]}
            machine["date"] = report["context"].get("date", "unknown")[:10]
            text = tables(report, markdown)
        except (OSError, ValueError, KeyError) as e:
            print("%s: not a benchmark's report: %s" % (path, e), file=sys.stderr)
            return 1
        if machine != said:
            print("\n".join("%s: %s%s" % (k, v, "  " if markdown else "") for k, v in machine.items()))
            said = machine
        title = report["context"].get("executable", path).split("/")[-1]
        if "preload" in report["context"]:
            title += " with " + report["context"]["preload"]
        print("\n%s%s\n" % ("## " if markdown else "== ", title))
        print(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        sys.exit(0)
