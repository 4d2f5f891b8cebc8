"""`hostcuda dryrun`: runs a PyTorch program without a GPU under several allocators, and says how much device memory
it needs. Kernels and math libraries do nothing, so only memory is true, not results.
"""
import argparse
import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from . import dryrun_pictures, launcher, stillmap_library

MIB = 1 << 20
# What a program sees: the machine of hostcuda and the device's memory. Names stay those of hostcuda.
GPUS = {
    "h200": ("h200", None),
    "h100": ("h200", 81_079 * MIB),
    "a100": ("a100", None),
    "l40s": ("a100", 45_458 * MIB),
    "rtx4090": ("a100", 24_080 * MIB),
}
SETTINGS = {
    "native": "",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
    "stillmap": "",
}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
STEP = 32 * MIB  # of --find-least
LARGEST = 1 << 20  # that --find-batch tries
GRACE = 20  # seconds that an interrupted program has to end, and to write its report

LATE = "time limit"
Run = collections.namedtuple("Run", "status seconds reports output")

DESCRIPTION = """\
Runs an unmodified PyTorch program on hostcuda, once for each of several allocators, and reports the device memory it needs: at the
peak in tensors (live), held by the allocator, and taken from the device. There is no GPU: kernels are skipped and math
libraries compute nothing, so losses and other results mean nothing.
"""
EPILOG = """\
What it cannot know: sizes that depend on values which a kernel would have computed (the places that read such values
are listed), workspaces of cuDNN and cuBLASLt, and the memory of the CUDA context (some hundred MiB on a GPU).

examples:
  hostcuda dryrun --gpu a100 --allocator all --find-least --pictures out -- python train.py --batch 8
  hostcuda dryrun --gpu rtx4090 --find-batch BATCH -- python train.py --batch {BATCH}
"""


def size(text):
    digits = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = digits[-1] if digits and digits[-1] in "KMGT" else ""
    try:
        return int(float(digits[:-1] if unit else digits) * UNITS[unit])
    except ValueError:
        raise argparse.ArgumentTypeError("'%s' is not a size such as 24GiB" % text) from None


def shown(count):
    return "%.2f GiB" % (count / 2**30) if count >= 1 << 30 else "%.0f MiB" % (count / MIB)


def interruptible():
    """In the child: a shell's background job would inherit that SIGINT is ignored, and the time limit needs it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Program:
    """The user's program, and the machine it runs on."""

    def __init__(self, options):
        self.options = options
        self.folder = launcher.libraries()
        self.profile, self.memory = GPUS[options.gpu]
        if options.gpus > 1:
            self.profile, self.memory = "multi:%d" % options.gpus, self.memory
        self.memory = options.memory or self.memory

    def environment(self, allocator, reports, memory, pictures=False):
        config = ["unbacked", "vmm_in_capture=allow"]  # PyTorch maps memory while it captures a graph
        if memory:
            config.append("memory=%d" % memory)
        text = launcher.settings(self.profile, "skip", ",".join(config + self.options.config),
                                 os.environ.get("HOSTCUDA"))
        launcher.check_settings(self.folder, text)
        out = launcher.inside(launcher.environment(self.folder, text, os.environ), HOSTCUDA_DRYRUN_REPORT=reports)
        if pictures:
            out["HOSTCUDA_DRYRUN_PICTURES"] = "1"
        out["HOSTCUDA_DRYRUN_LOOP_LIMIT"] = str(self.options.loop_limit)
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            if SETTINGS[allocator]:
                out[name] = ",".join(filter(None, [out.get(name), SETTINGS[allocator]]))
        if allocator == "stillmap":
            out["HOSTCUDA_DRYRUN_STILLMAP"] = str(self.options.stillmap)
            out["STILLMAP_DRIVER"] = str(self.folder / launcher.DRIVER)
        return out

    def arguments(self, batch):
        if not self.options.find_batch:
            return self.options.program
        return [text.replace("{%s}" % self.options.find_batch, str(batch)) for text in self.options.program]

    def run(self, allocator, memory=None, quiet=False, batch=1):
        with tempfile.TemporaryDirectory(prefix="hostcuda-dryrun-") as reports:
            began = time.monotonic()
            with tempfile.TemporaryFile() as output:
                try:
                    process = subprocess.Popen(self.arguments(batch), stdout=output if quiet else sys.stderr,
                                               stderr=subprocess.STDOUT if quiet else None,
                                               preexec_fn=interruptible,
                                               env=self.environment(allocator, reports, memory or self.memory,
                                                                    bool(self.options.pictures and not memory)))
                except OSError as error:
                    raise launcher.Failure("cannot start %s: %s" % (self.options.program[0], error.strerror)) from None
                status = self.wait(process)
                output.seek(0)
                text = output.read().decode(errors="replace")
            found = [json.loads(path.read_text()) for path in sorted(pathlib.Path(reports).glob("*.json"))]
        return Run(status, time.monotonic() - began, found, text)

    def wait(self, process):
        """The exit status, or LATE for a program that was interrupted at the time limit."""
        try:
            return process.wait(self.options.time_limit)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return LATE

    def largest(self, allocator, first):
        """The largest value of the variable with which the program ends as it did with 1, and that run."""
        low, high, best = 1, None, first
        while low < LARGEST and (high is None or high - low > 1):
            middle = 2 * low if high is None else (low + high) // 2
            run = self.run(allocator, quiet=True, batch=middle)
            fits = run.status == first.status and bool(run.reports)
            say("  %s with %s=%d: %s" % (allocator, self.options.find_batch, middle, "fits" if fits else "does not fit"))
            if fits:
                low, best = middle, run
            else:
                high = middle
        return low, best

    def least(self, allocator, first, batch=1):
        """The least memory of a device at which the program ends as it did, in multiples of STEP."""
        most = max(report["device"] for report in first.reports)
        low, high = max(report["live"] for report in first.reports) // self.options.gpus // STEP, -(-most // STEP) + 1
        while low < high:
            middle = (low + high) // 2
            fits = middle > 0 and self.run(allocator, middle * STEP, quiet=True, batch=batch).status == first.status
            say("  %s with %s: %s" % (allocator, shown(middle * STEP), "fits" if fits else "does not fit"))
            low, high = (low, middle) if fits else (middle + 1, high)
        return high * STEP


def ended(status):
    return {0: "ok", LATE: LATE}.get(status, "status %s" % status)


def say(text):
    print(text, file=sys.stderr, flush=True)


def summary(run):
    """The process that took the most memory: of several, each has devices of its own on hostcuda."""
    return max(run.reports, key=lambda report: report["device"])


def table(rows):
    head = ("allocator", "live", "held", "device", "held/live", "retries", "batch", "least", "time", "ended")
    cells = [head] + [tuple(str(cell) for cell in row) for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in cells)


def draw(options, program, drawn):
    device = "%s%s" % ("%d x " % options.gpus if options.gpus > 1 else "", options.gpu)
    if program.memory:
        device += ", %s" % shown(program.memory)
    file = options.pictures / "memory.svg"
    file.write_text(dryrun_pictures.draw(" ".join(options.program),
                                         "As on the GPU %s, but without one: nothing was computed. All allocators are "
                                         "drawn at the same scale." % device, drawn), encoding="utf-8")
    say("hostcuda dryrun: wrote %s" % file)


def parser():
    top = argparse.ArgumentParser(prog="hostcuda dryrun", description=DESCRIPTION, epilog=EPILOG,
                                  usage="hostcuda dryrun [OPTIONS] -- PROGRAM [ARG...]",
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--gpu", choices=GPUS, default="h200", help="the device (default: h200)")
    top.add_argument("--gpus", type=int, default=1, metavar="N", help="devices, 1 to %d" % launcher.MOST_DEVICES)
    top.add_argument("--memory", type=size, metavar="SIZE", help="memory of each device, in place of the GPU's: 24GiB")
    top.add_argument("--allocator", action="append", choices=[*SETTINGS, "all"],
                     help="PyTorch's native one, its expandable segments, cudaMallocAsync, or Stillmap; may be given "
                          "again (default: native and, if it is installed, stillmap)")
    top.add_argument("--stillmap", type=pathlib.Path, metavar="LIBRARY",
                     help="libstillmap_torch.so (default: that of the Python package stillmap, or of the command's "
                          "installation)")
    top.add_argument("--find-least", action="store_true",
                     help="also search for the least memory at which the program runs; takes some ten runs each")
    top.add_argument("--find-batch", metavar="VAR",
                     help="also search for the largest whole number with which the program ends as it does with 1: it "
                          "takes the place of {VAR} in the program's arguments, is doubled until a run fails and then "
                          "halved; the rest of the report is of the run with the largest")
    top.add_argument("--pictures", type=pathlib.Path, metavar="FOLDER",
                     help="write FOLDER/memory.svg: for each allocator memory over time, the heap at its peak, and the "
                          "lines of the program that allocated what was in use then")
    top.add_argument("--loop-limit", type=int, default=256, metavar="N",
                     help="a condition in the device's memory is false N times at one line of the program, then true "
                          "once, because no kernel makes it true (default: 256; 0: never)")
    top.add_argument("--time-limit", type=float, default=600, metavar="SECONDS",
                     help="of one run (default: 600)")
    top.add_argument("--config", action="append", default=[], metavar="TEXT", help="further settings of hostcuda")
    top.add_argument("--json", action="store_true", help="print one JSON document")
    top.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="the program and its arguments")
    return top


def check(options):
    if options.program[:1] == ["--"]:
        del options.program[0]
    if not options.program:
        raise launcher.Failure("no program: hostcuda dryrun [OPTIONS] -- PROGRAM [ARG...]")
    if not 1 <= options.gpus <= launcher.MOST_DEVICES:
        raise launcher.Failure("--gpus %d: there can be 1 to %d" % (options.gpus, launcher.MOST_DEVICES))
    if options.gpus > 1 and GPUS[options.gpu][0] != "h200":
        raise launcher.Failure("--gpus needs --gpu h200 or h100: hostcuda's machines of several devices have those")
    if options.find_batch and not any("{%s}" % options.find_batch in text for text in options.program):
        raise launcher.Failure("--find-batch %s: no argument of the program contains {%s}" %
                               (options.find_batch, options.find_batch))
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    chosen = options.allocator or ["native", "stillmap"]
    if options.stillmap:
        options.stillmap = options.stillmap.resolve()
        if not options.stillmap.exists():
            raise launcher.Failure("there is no %s" % options.stillmap)
    elif {"stillmap", "all"} & set(chosen):
        options.stillmap = stillmap_library.find(options.program[0])
    if "stillmap" in (options.allocator or ()) and not options.stillmap:
        raise launcher.Failure("--allocator stillmap: Stillmap is not installed, neither as a Python package nor as a "
                               "command in PATH; --stillmap FOLDER/%s names its library" % stillmap_library.LIBRARY)
    if "all" in chosen:
        chosen = list(SETTINGS)
    if not options.stillmap:
        chosen = [name for name in chosen if name != "stillmap"]
    return list(dict.fromkeys(chosen))


def main(arguments=None):
    options = parser().parse_args(arguments)
    chosen = check(options)
    program = Program(options)
    rows, results, drawn, reads, read, ended_loops = [], [], [], collections.Counter(), 0, {}
    for allocator in chosen:
        say("hostcuda dryrun: %s" % allocator)
        run = program.run(allocator)
        if not run.reports:
            say("hostcuda dryrun: the program ended with status %s, and no process of it left a report: it did not use "
                "a GPU through PyTorch, or it was killed" % run.status)
            rows.append((allocator, "", "", "", "", "", "", "", "%.0f s" % run.seconds, "no report"))
            results.append({"allocator": allocator, "status": run.status or 1})
            continue
        batch = None
        if options.find_batch and run.status == 0:
            batch, run = program.largest(allocator, run)
        report = summary(run)
        drawn.append((allocator, dict(report)))
        report.pop("history", None)
        least = program.least(allocator, run, batch or 1) if options.find_least and run.status == 0 else None
        ratio = "%.3f" % (report["held"] / report["live"]) if report["live"] else ""
        rows.append((allocator, shown(report["live"]), shown(report["held"]), shown(report["device"]), ratio,
                     report["retries"], batch or "", shown(least) if least else "", "%.0f s" % run.seconds,
                     ended(run.status)))
        results.append(dict(report, allocator=allocator, status=run.status, seconds=run.seconds, least=least, batch=batch,
                            processes=len(run.reports)))
        read = max(read, report["read"])
        ended_loops.update(report["ended"])
        for place, count in report["reads"]:
            reads[place] = max(reads[place], count)
    if options.json:
        print(json.dumps({"gpu": options.gpu, "gpus": options.gpus, "memory": program.memory, "runs": results}))
    else:
        print(table(rows))
        if read:
            print("\n%d bytes of device memory were copied to the host, which no kernel had written: what the program "
                  "does with them is a guess." % read)
        for place, count in reads.most_common(10):
            loops = ", true after %d times" % options.loop_limit if place in ended_loops else ""
            print("  %6d  %s%s" % (count, place, loops))
    if options.pictures:
        draw(options, program, drawn)
    return 0 if all(result["status"] == 0 for result in results) else 1
