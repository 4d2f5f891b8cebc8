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
    return "/".join(p for p in parts if p != "manual_time" and p.split(":")[0] not in ("iterations", "min_time"))


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
            lines = list(rows(report))
        except (OSError, ValueError, KeyError) as e:
            print("%s: not a benchmark's report: %s" % (path, e), file=sys.stderr)
            return 1
        if machine != said:
            print("\n".join("%s: %s%s" % (k, v, "  " if markdown else "") for k, v in machine.items()))
            said = machine
        title = report["context"].get("executable", path).split("/")[-1]
        print("\n%s%s\n" % ("## " if markdown else "== ", title))
        print(table(lines, markdown))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        sys.exit(0)
