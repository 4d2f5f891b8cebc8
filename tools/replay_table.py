#!/usr/bin/env python3
"""Replays every trace on every allocator and prints one table.

tools/replay_table.py [options] [TRACE...]        default: all of bench/traces/ and all workloads

  --recorded         only bench/traces/, --generated: only the workloads of tools/workloads.py, which
                     are written to out/workloads
  --seed N           of the workloads (default 1)
  --allocators A,B   which (default: all that `stillmap trace replay --help` names, torch and
                     torch-expanding if STILLMAP_TORCH_PEER is set); segments-tuned is segments with
                     the settings, of some that users of PyTorch choose, that need the least memory
                     for the trace
  --page-size SIZE   of stillmap (default: the device's granularity)
  --iterations N     of a training trace (default 8); one that has more, or cannot be repeated,
                     runs as it stands
  --markdown         as a Markdown table
  --json FILE        the figures too, as JSON
  --promises         instead of a table: measure `stillmap` beside its peers and say, trace by trace, which
                     of the promises of docs/allocator.md#what-it-promises hold
  --verify           instead of measuring: check the content of every block on hostcuda with its
                     strict oracle, with twice the peak of live bytes, at 1.02 times the peak and
                     at the least capacity; only `stillmap` unless --allocators says otherwise

The command is bazel-bin/tools/stillmap, built first, or what STILLMAP_TOOL names. Columns:

  peak       of live bytes
  least      the least memory at which it does not run out, by the peak
  held       most memory held where there is ample (all of the device's), by the peak
  calls      driver calls in the last iteration, with ample memory; traces that repeat themselves only
  at 2x      modelled driver time of the last iteration where there is twice the peak
  at 1.05x   the same at 1.05 times the peak
  ns/op      of a request at 2x; traces of one iteration include getting the memory
  p99        of the CPU time of a request there, from the third iteration on; and p99.9
  books      host memory of the allocator
  mutex      ns of an uncontended std::mutex lock and unlock, in the same run

Exit status: 0, or 1 where a replay failed (with --verify: where a byte was wrong; with --promises: where
one does not hold).
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOCATORS = ("stillmap", "segments", "segments-tuned", "segments-expanding", "pool", "direct")
TORCH = ("torch", "torch-expanding")  # where STILLMAP_TORCH_PEER names the library
TUNINGS = [["--max-split-size", size] for size in ("32M", "128M", "512M")] + [
    ["--roundup-power2-divisions", "4"], ["--roundup-power2-divisions", "16"],
    ["--max-split-size", "128M", "--roundup-power2-divisions", "8"]]
GIB = 2.0**30


class Tool:
    def __init__(self, page_size=None):
        self.page_size = ["--page-size", page_size] if page_size else []
        self.path = os.environ.get("STILLMAP_TOOL", str(ROOT / "bazel-bin/tools/stillmap"))
        self.environment = dict(os.environ)
        built = ROOT / "bazel-bin/hostcuda/libcuda.so.1"
        if "STILLMAP_HOSTCUDA" not in os.environ and built.exists():
            self.environment["STILLMAP_HOSTCUDA"] = str(built)
        self.environment.setdefault("STILLMAP_DRIVER", "host")

    def run(self, *arguments):
        """The exit status, standard output and standard error of one replay."""
        if "stillmap" in arguments:
            arguments += tuple(self.page_size)
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
    """The options that repeat a trace; whether it has iterations at all; whether they make a loop, which
    can be repeated more often than it was recorded."""
    options = ["--iterations", str(iterations)]
    plain = tool.figures(trace, "--allocator", "segments")
    more = tool.figures(trace, "--allocator", "segments", *options)
    if isinstance(plain, str):
        raise SystemExit("%s: %s" % (trace, plain))
    # Without two boundaries N iterations are N times the whole program: no steady state.
    if isinstance(more, str) or more["ops"] >= iterations * plain["ops"]:
        return [], False, False
    # With more iterations than that, each is another: the peak may be in any of them.
    return [] if more["ops"] < plain["ops"] else options, True, more["ops"] > plain["ops"]


def tuned(tool, where, options):
    """The settings of segments that need the least memory."""
    best = None
    for settings in [[]] + TUNINGS:
        found = tool.figures(*where, *settings, *options, "--find-min-capacity")
        least = None if isinstance(found, str) else found.get("min_capacity_bytes")
        if least is not None and (best is None or least < best[0]):
            best = (least, settings)
    return best[1] if best else []


def measure(tool, trace, allocator, options, repeats):
    where = [trace, "--allocator", allocator.removesuffix("-tuned")]
    if allocator == "segments-tuned":
        where += tuned(tool, where, options)
    ample = tool.figures(*where, *options, "--find-min-capacity")
    if isinstance(ample, str):
        return {"trace": name_of(trace), "allocator": allocator, "failed": ample}
    twice = tool.figures(*where, *options, "--capacity", "2x")
    tight = tool.figures(*where, *options, "--capacity", "1.05x")
    peak = ample["peak_live_bytes"]
    least = ample.get("min_capacity_bytes")
    row = {
        "trace": name_of(trace), "allocator": allocator, "settings": " ".join(where[3:]),
        "peak_live_bytes": peak, "repeats": repeats,
        "least": least and least / peak,
        "held": ample["peak_committed_bytes"] / peak,
        "calls": ample["driver_calls_last_iteration"] if repeats else None,
        "mutex_ns": ample["mutex_ns"], "oom": ample["oom"],
    }
    for name, figures in (("twice", twice), ("tight", tight)):
        row[name + "_oom"] = isinstance(figures, dict) and figures["oom"]
        fits = isinstance(figures, dict) and not figures["oom"]
        row[name + "_us"] = figures["modelled_driver_us_last_iteration"] if fits else None
        row[name + "_ns_per_op"] = figures["ns_per_op"] if fits else None
        row[name + "_cpu_ns"] = figures.get("request_cpu_ns") if fits else None
        row[name + "_host_bytes"] = figures.get("host_bytes") if fits else None
    return row


def cells(row):
    if "failed" in row:
        return [row["trace"], row["allocator"], row["failed"][:60]] + [""] * (len(HEAD) - 3)
    ratio = lambda x: "-" if x is None else "%.4f" % x
    calls = "-" if row["calls"] is None else str(sum(row["calls"].values()))

    def driver_time(of):
        if row[of + "_oom"]:
            return "out of memory"
        us = row[of + "_us"]
        return "-" if us is None or not row["repeats"] else "%.0f us" % us

    cpu = row["twice_cpu_ns"] or {}
    micro = lambda ns: "-" if ns is None else "%.1f us" % (ns / 1000)
    books = row["twice_host_bytes"]
    held = "out of memory" if row["oom"] else ratio(row["held"])
    ns = row["twice_ns_per_op"]
    return [row["trace"], row["allocator"], "%.2f GiB" % (row["peak_live_bytes"] / GIB),
            ratio(row["least"]), held, calls, driver_time("twice"), driver_time("tight"),
            "-" if ns is None else "%.1f" % ns, micro(cpu.get("p99")), micro(cpu.get("p999")),
            "-" if books is None else "%.1f MiB" % (books / 2**20), "%.1f" % row["mutex_ns"]]


HEAD = ["trace", "allocator", "peak", "least", "held", "calls", "at 2x", "at 1.05x", "ns/op", "p99",
        "p99.9", "books", "mutex"]


def print_row(row, widths, markdown):
    if markdown:
        print("| %s |" % " | ".join(row))
    else:
        print("  ".join(("%-*s" if i < 2 else "%*s") % (w, c)
                        for i, (w, c) in enumerate(zip(widths, row))).rstrip())
    sys.stdout.flush()


def table(tool, traces, allocators, iterations, markdown):
    widths = [max([len("trace")] + [len(name_of(t)) for t in traces]),
              max(len(a) for a in allocators), 9, 6, 13, 6, 13, 13, 7, 9, 9, 10, 5]
    print_row(HEAD, widths, markdown)
    if markdown:
        print_row(["---", "---"] + ["---:"] * (len(HEAD) - 2), widths, True)
    rows = []
    for trace in traces:
        options, repeats, _ = steps(tool, trace, iterations)
        for allocator in allocators:
            rows.append(measure(tool, trace, allocator, options, repeats))
            print_row(cells(rows[-1]), widths, markdown)
    return rows


MOST_ITERATIONS = 12  # of a recorded trace

# Driver calls that a request with uses on other streams means, whatever the allocator does: events,
# and what is called before an event is recorded or queried.
OF_USES = ("cuEvent", "cuStreamWaitEvent", "cuStreamIsCapturing", "cuStreamGetCaptureInfo",
           "cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode")


def recorded_training(trace):
    path = pathlib.Path(trace)
    return path.parent == ROOT / "bench" / "traces" and not path.name.startswith(("serving", "llama_8b"))


def broken_promises(tool, trace, iterations):
    """Lines that say which promises do not hold, and a line of what was measured."""
    options, repeats, exact = steps(tool, trace, iterations)
    if repeats and not exact:
        # Iterations that differ, but recur as a whole, are repeated until that has happened twice.
        longer, _, exact = steps(tool, trace, 3 * MOST_ITERATIONS)
        options = longer if exact else options
    broken = []

    def at(allocator, capacity):
        return tool.figures(trace, "--allocator", allocator, *options, "--capacity", capacity)

    def ran(found):
        return isinstance(found, dict) and not found["oom"]

    def expect(holds, text, *values):
        if not holds:
            broken.append(text % values)

    least = {}
    for allocator in ("stillmap", "segments", "segments-expanding"):
        found = tool.figures(trace, "--allocator", allocator, *options, "--find-min-capacity")
        if isinstance(found, str):
            return ["%s: %s" % (allocator, found)], ""
        peak = found["peak_live_bytes"]
        least[allocator] = (found.get("min_capacity_bytes") or float("inf")) / peak
    best = min(least["segments"], least["segments-expanding"])
    expanding = least["segments-expanding"]
    expect(least["stillmap"] <= expanding * 1.005, "least memory %.4f of the peak, segments-expanding %.4f",
           least["stillmap"], expanding)
    if recorded_training(trace):
        most = 1.004 if peak >= 8 * GIB else 1.03
        expect(least["stillmap"] <= most, "least memory %.4f, promised %.3f", least["stillmap"], most)

    said, excepted = [], 0
    for capacity in ("2x", "1.6x", "1.05x", "1.01x"):
        if capacity == "1.01x" and peak < GIB:
            continue
        ours = at("stillmap", capacity)
        if not ran(ours):
            times = float(capacity[:-1])
            expect(not isinstance(ours, str) and least["stillmap"] > times
                   and (best > times or capacity == "1.01x"), "%s: %s", capacity,
                   ours if isinstance(ours, str) else "out of memory")
            continue
        us = ours["modelled_driver_us_last_iteration"]
        calls = ours["driver_calls_last_iteration"]
        own = {n: c for n, c in calls.items() if c and not n.startswith(OF_USES)}
        excepted = max(excepted, sum(calls.values()) - sum(own.values()))
        said.append("%s: %d calls, %.0f us" % (capacity, sum(own.values()), us))
        if exact:
            expect(not own, "%s: a loop calls the driver in its last iteration: %s", capacity, own)
        elif repeats and capacity == "2x":
            peer = at("segments-expanding", capacity)
            theirs = peer["modelled_driver_us_last_iteration"] if ran(peer) else float("inf")
            expect(us <= max(1000, theirs), "2x: %.0f us in the last iteration, segments-expanding %.0f",
                   us, theirs)
        elif repeats and capacity == "1.05x":
            direct, peer = at("direct", capacity), at("segments-expanding", capacity)
            if ran(direct):
                theirs = direct["modelled_driver_us_last_iteration"]
                expect(us <= theirs / 10, "1.05x: %.0f us in the last iteration, direct %.0f", us, theirs)
            if ran(peer):
                theirs = peer["modelled_driver_us_last_iteration"]
                expect(us <= theirs, "1.05x: %.0f us in the last iteration, segments-expanding %.0f", us,
                       theirs)
        if capacity not in ("2x", "1.05x"):
            continue
        peer = at("segments", capacity)
        cpu = ours.get("request_cpu_ns") or {}
        said[-1] += ", %.0f ns" % ours["ns_per_op"]
        if ran(peer):
            said[-1] += " (segments %.0f)" % peer["ns_per_op"]
            expect(ours["ns_per_op"] <= peer["ns_per_op"], "%s: %.1f ns an operation, segments %.1f",
                   capacity, ours["ns_per_op"], peer["ns_per_op"])
        if repeats and cpu:
            said[-1] += ", p99 %.1f us, p99.9 %.1f us" % (cpu["p99"] / 1e3, cpu["p999"] / 1e3)
            expect(cpu["p99"] <= 5e3, "%s: p99 of a request %.1f us", capacity, cpu["p99"] / 1e3)
            expect(cpu["p999"] <= 50e3, "%s: p99.9 of a request %.1f us", capacity, cpu["p999"] / 1e3)
    kind = "exact loop" if exact else "iterations" if repeats else "no iterations"
    return broken, "%s, peak %.2f GiB, least %.4f (peers %.4f, %.4f)%s; %s" % (
        kind, peak / GIB, least["stillmap"], least["segments"], least["segments-expanding"],
        ", %d calls for uses" % excepted if excepted else "", "; ".join(said))


def promises(tool, traces, iterations):
    """Prints what holds; returns how many traces break a promise."""
    failed = 0
    for trace in traces:
        broken, said = broken_promises(tool, trace, iterations)
        failed += bool(broken)
        print("%-8s %-28s %s" % ("BROKEN" if broken else "ok", name_of(trace), said))
        for line in broken:
            print("         %-28s   %s" % ("", line))
        sys.stdout.flush()
    return failed


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
            for what, options in (("2x", ["--capacity", "2x"]), ("1.02x", ["--capacity", "1.02x"]),
                                  ("the least", ["--capacity", str(least)])):
                if what == "the least" and least is None:
                    continue
                began = time.monotonic()
                status, out, err = tool.run(trace, "--allocator", allocator, "--verify", *options)
                said = err or (out.splitlines() or ["no output"])[-1]
                # While other streams' work is really pending, what they used comes back later than
                # in the search for the least, in which nothing is queued.
                ran_out = status == 1 and "out of memory at operation" in err
                too_little = least is None or least > 1.02 * found["peak_live_bytes"]
                expected = what == "the least" or (
                    what == "1.02x" and (allocator != "stillmap" or too_little))
                if status != 0 and not (ran_out and expected):
                    wrong += 1
                print("%-24s %-18s %-13s %5.1f s  %s" % (
                    name_of(trace), allocator, what, time.monotonic() - began, said))
                sys.stdout.flush()
    return wrong


def chosen(o):
    """The recorded traces and the generated ones."""
    traces = []
    if not o.generated:
        traces += sorted(str(t) for t in (ROOT / "bench" / "traces").glob("*.trace.zst"))
    if not o.recorded:
        into = ROOT / "out" / "workloads" / str(o.seed)
        subprocess.run([sys.executable, str(ROOT / "tools" / "workloads.py"), "--into", str(into),
                        "--seed", str(o.seed)], check=True, stdout=sys.stderr)
        traces += sorted(str(t) for t in into.glob("*.trace*"))
    return traces


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage=argparse.SUPPRESS, add_help=False)
    parser.add_argument("traces", nargs="*")
    parser.add_argument("--allocators")
    parser.add_argument("--recorded", action="store_true")
    parser.add_argument("--generated", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page-size")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--promises", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    o = parser.parse_args()
    if o.help:
        print(__doc__.strip())
        return 0
    if "STILLMAP_TOOL" not in os.environ:
        subprocess.run(["bash", "-c", 'source "$0/tools/setup.sh"; ensure_machine; bazel_quietly '
                        "build //tools:stillmap //hostcuda:libcuda.so.1", str(ROOT)], check=True)
    tool = Tool(o.page_size)
    traces = o.traces or chosen(o)
    peers = TORCH if os.environ.get("STILLMAP_TORCH_PEER") else ()
    default = ALLOCATORS[:1] if o.verify else ALLOCATORS + peers
    allocators = o.allocators.split(",") if o.allocators else default
    if o.verify:
        wrong = verify(tool, traces, allocators)
        print("%s: %d replays found something wrong" % ("FAILED" if wrong else "ok", wrong))
        return 1 if wrong else 0
    if o.promises:
        failed = promises(tool, traces, o.iterations)
        print("%s: %d of %d traces break a promise" % ("FAILED" if failed else "ok", failed, len(traces)))
        return 1 if failed else 0
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
