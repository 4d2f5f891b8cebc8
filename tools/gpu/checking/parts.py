"""What there is to run, part by part. A part ends when its seconds are over, whatever is left of it.

A machine with a GPU is lent by the minute: all parts together take at most 25.
"""
import collections
import importlib.util
import os
import sys

# kind: how its results are read (running.py). seconds: of this job; a part may have fewer left.
# absent: why it cannot run here; empty where it can.
Job = collections.namedtuple("Job", "name kind command seconds environment absent",
                             defaults=({}, ""))


class Part:
    """Named jobs and the seconds they have together."""

    def __init__(self, name, what, seconds, jobs):
        self.name = name
        self.what = what
        self.seconds = seconds
        self.jobs = jobs  # (bundle's folder, results' folder, options) -> list of Job


def test(name):
    return lambda here, out, given: Job(name, "tests", [str(here / "tests" / name)], 300)


def bench(name):
    def job(here, out, given):
        quickly = ["--benchmark_min_time=0.001"] if given.quick else []
        return Job(name, "benchmark", [str(here / "bench" / name)] + quickly, 300)
    return job


def costs(here, out, given):
    command = [str(here / "bin" / "cost_table"), "--out", str(out), "--seconds", "200"]
    if given.quick:
        command.append("--quick")
    return Job("costs", "json", command, 240)


def torch(here, out, given):
    command = [sys.executable, str(here / "torch_check" / "run.py"),
               "--library", str(here / "lib" / "libstillmap_torch.so"), "--out", str(out),
               "--seconds", "400"]
    if given.quick:
        command.append("--quick")
    if given.driver == "host":
        command += ["--device", "cpu"]
    absent = "" if importlib.util.find_spec("torch") else "PyTorch is not installed"
    # Python has its own C++ runtime, and the plug-in needs nothing of ours.
    environment = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    return Job("torch", "json", command, 425, environment, absent)


def of(*makers):
    return lambda here, out, given: [make(here, out, given) for make in makers]


ALL = (
    Part("conformance", "what is assumed of CUDA, number by number", 120, of(test("conformance"))),
    Part("tests", "growth, with kernels that look at the data", 120, of(test("gpu"))),
    Part("costs", "every call of the driver against size, neighbours, threads, mappings", 240,
         of(costs)),
    Part("growth", "growing in place, against copying and the driver's own pools", 200,
         of(bench("driver_bench"), bench("growth_bench"), bench("append_bench"),
            bench("vector_bench"), bench("remap_bench"))),
    Part("allocator", "the caching allocator's hot path", 60, of(bench("allocator_bench"))),
    Part("checkpoint", "suspend, snapshot, handoff, migration, against the copy engine", 300,
         of(bench("suspend_bench"), bench("digest_bench"), bench("handoff_bench"),
            bench("migration_bench"), bench("process_bench"), bench("snapshot_bench"),
            bench("image_bench"))),
    Part("torch", "training and serving with PyTorch, four allocators side by side", 430, of(torch)),
)
