#!/usr/bin/env python3
"""Replays every trace on every allocator and prints one table.

tools/replay_table.py [options] [TRACE...]        default: all of bench/traces/

  --allocators A,B   which (default: all that `stillmap trace replay --help` names)
  --iterations N     of a training trace (default 5); one that has more, or cannot be repeated,
                     runs as it stands
  --markdown         as a Markdown table
  --json FILE        the figures too, as JSON
  --verify           instead of measuring: check the content of every block on hostcuda with its
                     strict oracle, with ample memory, at 1.05 times the peak of live bytes and at
                     the least capacity; only `stillmap` unless --allocators says otherwise

The command is bazel-bin/tools/stillmap, built first, or what STILLMAP_TOOL names. Columns:

  peak       of live bytes
  least      the least memory at which it does not run out, by the peak
  held       most memory held where there is ample (all of the device's), by the peak
  calls      driver calls in the last iteration, with ample memory; traces that repeat themselves only
  at 1.05x   modelled driver time of the last iteration where there is 1.05 times the peak
  ns/op      of a request with ample memory; traces of one iteration include getting the memory
  mutex      ns of an uncontended std::mutex lock and unlock, in the same run

Exit status: 0, or 1 where a replay failed (with --verify: where a byte was wrong).
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOCATORS = ("stillmap", "segments", "segments-expanding", "pool", "direct")
GIB = 2.0**30


class Tool:
    def __init__(self):
        self.path = os.environ.get("STILLMAP_TOOL", str(ROOT / "bazel-bin/tools/stillmap"))
        self.environment = dict(os.environ)
        built = ROOT / "bazel-bin/hostcuda/libcuda.so.1"
        if "STILLMAP_HOSTCUDA" not in os.environ and built.exists():
            self.environment["STILLMAP_HOSTCUDA"] = str(built)
        self.environment.setdefault("STILLMAP_DRIVER", "host")

    def run(self, *arguments):
        """The exit status, standard output and standard error of one replay."""
        done = subprocess.run([self.path, "trace", "replay", *arguments], env=self.environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stdout, done.stderr.strip()

    def figures(self, *arguments):
        """The figures of one replay; a string that says why there are none. Out of memory is a
        result, which has them too."""
        _, out, err = self.run("--json", *arguments)
        try:
            found = json.loads(out)
        except ValueError:
            return err or "no output"
        return err if "error" in found else found


def name_of(trace):
    name = pathlib.Path(trace).name
    for end in (".zst", ".trace", ".csv", ".pickle"):
        name = name[: -len(end)] if name.endswith(end) else name
    return name


def steps(tool, trace, iterations):
    """The options that repeat a trace, and whether it has iterations at all."""
    options = ["--iterations", str(iterations)]
    plain = tool.figures(trace, "--allocator", "segments")
    more = tool.figures(trace, "--allocator", "segments", *options)
    if isinstance(plain, str):
        raise SystemExit("%s: %s" % (trace, plain))
    # Without two boundaries N iterations are N times the whole program: no steady state.
    if isinstance(more, str) or more["ops"] >= iterations * plain["ops"]:
        return [], False
    # With more iterations than that, each is another: the peak may be in any of them.
    return ([], True) if more["ops"] < plain["ops"] else (options, True)


def measure(tool, trace, allocator, options, repeats):
    where = [trace, "--allocator", allocator]
    ample = tool.figures(*where, *options, "--find-min-capacity")
    if isinstance(ample, str):
        return {"trace": name_of(trace), "allocator": allocator, "failed": ample}
    tight = tool.figures(*where, *options, "--capacity", "1.05x")
    peak = ample["peak_live_bytes"]
    least = ample.get("min_capacity_bytes")
    return {
        "trace": name_of(trace), "allocator": allocator, "peak_live_bytes": peak,
        "repeats": repeats,
        "least": least and least / peak,
        "held": ample["peak_committed_bytes"] / peak,
        "calls": ample["driver_calls_last_iteration"] if repeats else None,
        "between_us": None if isinstance(tight, str) or tight["oom"]
        else tight["modelled_driver_us_last_iteration"],
        "between_oom": isinstance(tight, dict) and tight["oom"],
        "ns_per_op": ample["ns_per_op"], "mutex_ns": ample["mutex_ns"], "oom": ample["oom"],
    }


def cells(row):
    if "failed" in row:
        return [row["trace"], row["allocator"], row["failed"][:60], "", "", "", "", "", ""]
    ratio = lambda x: "-" if x is None else "%.4f" % x
    calls = "-" if row["calls"] is None else str(sum(row["calls"].values()))
    if row["between_oom"]:
        between = "out of memory"
    elif row["between_us"] is None or not row["repeats"]:
        between = "-"
    else:
        between = "%.0f us" % row["between_us"]
    held = "out of memory" if row["oom"] else ratio(row["held"])
    return [row["trace"], row["allocator"], "%.2f GiB" % (row["peak_live_bytes"] / GIB),
            ratio(row["least"]), held, calls, between, "%.1f" % row["ns_per_op"],
            "%.1f" % row["mutex_ns"]]


HEAD = ["trace", "allocator", "peak", "least", "held", "calls", "at 1.05x", "ns/op", "mutex"]


def print_row(row, widths, markdown):
    if markdown:
        print("| %s |" % " | ".join(row))
    else:
        print("  ".join(("%-*s" if i < 2 else "%*s") % (w, c)
                        for i, (w, c) in enumerate(zip(widths, row))).rstrip())
    sys.stdout.flush()


def table(tool, traces, allocators, iterations, markdown):
    widths = [max([len("trace")] + [len(name_of(t)) for t in traces]),
              max(len(a) for a in allocators), 9, 6, 13, 6, 13, 7, 5]
    print_row(HEAD, widths, markdown)
    if markdown:
        print_row(["---", "---"] + ["---:"] * 7, widths, True)
    rows = []
    for trace in traces:
        options, repeats = steps(tool, trace, iterations)
        for allocator in allocators:
            rows.append(measure(tool, trace, allocator, options, repeats))
            print_row(cells(rows[-1]), widths, markdown)
    return rows


def verify(tool, traces, allocators):
    """Prints a line for each replay; returns how many found something wrong."""
    wrong = 0
    for trace in traces:
        for allocator in allocators:
            found = tool.figures(trace, "--allocator", allocator, "--find-min-capacity")
            if isinstance(found, str):
                print("%s, %s: %s" % (name_of(trace), allocator, found))
                wrong += 1
                continue
            least = found["min_capacity_bytes"]
            for what, options in (("ample memory", []), ("1.05x", ["--capacity", "1.05x"]),
                                  ("the least", ["--capacity", str(least)])):
                if what == "the least" and least is None:
                    continue
                began = time.monotonic()
                status, out, err = tool.run(trace, "--allocator", allocator, "--verify", *options)
                said = err or (out.splitlines() or ["no output"])[-1]
                # While other streams' work is really pending, what they used comes back later than
                # in the search for the least, in which nothing is queued.
                ran_out = status == 1 and "out of memory at operation" in err
                expected = what == "the least" or (what == "1.05x" and allocator != "stillmap")
                if status != 0 and not (ran_out and expected):
                    wrong += 1
                print("%-24s %-18s %-13s %5.1f s  %s" % (
                    name_of(trace), allocator, what, time.monotonic() - began, said))
                sys.stdout.flush()
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage=argparse.SUPPRESS, add_help=False)
    parser.add_argument("traces", nargs="*")
    parser.add_argument("--allocators")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    o = parser.parse_args()
    if o.help:
        print(__doc__.strip())
        return 0
    if "STILLMAP_TOOL" not in os.environ:
        subprocess.run(["bash", "-c", 'source "$0/tools/setup.sh"; ensure_machine; bazel_quietly '
                        "build //tools:stillmap //hostcuda:libcuda.so.1", str(ROOT)], check=True)
    tool = Tool()
    traces = o.traces or sorted(str(t) for t in (ROOT / "bench" / "traces").glob("*.trace.zst"))
    default = ALLOCATORS[:1] if o.verify else ALLOCATORS
    allocators = o.allocators.split(",") if o.allocators else default
    if o.verify:
        wrong = verify(tool, traces, allocators)
        print("%s: %d replays found something wrong" % ("FAILED" if wrong else "ok", wrong))
        return 1 if wrong else 0
    rows = table(tool, traces, allocators, o.iterations, o.markdown)
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
            f.write("\n")
    return 1 if any("failed" in r for r in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.exit(0)
