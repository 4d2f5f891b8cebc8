"""The parts of the check, the most telling first. A part is stopped when its time is used up.

A machine with a GPU is lent by the minute: all parts together take at most 25, or what `--minutes` says.
"""
import collections
import importlib.util
import os
import sys

# kind: how its results are read (running.py). seconds: of this job; it may get fewer. {seconds} in its command
# is what a program that ends by itself plans with. absent: why it cannot run here; empty where it can.
Job = collections.namedtuple("Job", "name kind command seconds environment absent",
                             defaults=({}, ""))


class Part:
    """Named jobs and the seconds they have together."""

    def __init__(self, name, what, seconds, jobs):
        self.name = name
        self.what = what
        self.seconds = seconds
        self.jobs = jobs  # (bundle's folder, results' folder, options) -> list of Job


def test(name, seconds):
    def job(here, out, given):
        # Of streams that share one of the device's queues a held one holds up the other.
        environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "32",
                       "STILLMAP_TOOL": str(here / "bin" / "stillmap"),
                       "STILLMAP_MODEL_SECONDS": "2" if given.quick else "10"}
        if given.quick and name != "conformance":  # one case in eight: ./test has run them all
            environment.update(GTEST_TOTAL_SHARDS="8", GTEST_SHARD_INDEX="0")
        if given.driver == "host":
            # As they run on a GPU: by a driver that has no switches for tests.
            environment.update(STILLMAP_DRIVER=str(here / "lib" / "plain" / "libcuda.so.1"),
                               STILLMAP_REQUIRE_GPU="1", HOSTCUDA="profile=h200,memory=8G")
        return Job(name, "tests", [str(here / "tests" / name)], seconds, environment)
    return job


def bench(name, seconds):
    def job(here, out, given):
        quickly = ["--benchmark_min_time=0.001"] if given.quick else []
        return Job(name, "benchmark", [str(here / "bench" / name)] + quickly, seconds)
    return job


def costs(here, out, given):
    command = [str(here / "bin" / "cost_table"), "--out", str(out), "--seconds", "{seconds}"]
    if given.quick:
        command.append("--quick")
    return Job("costs", "json", command, 240)


def torch(here, out, given):
    command = [sys.executable, str(here / "torch_check" / "run.py"),
               "--library", str(here / "lib" / "libstillmap_torch.so"), "--out", str(out),
               "--seconds", "{seconds}"]
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


def tests(here, out, given):
    """All that the bundle has, kernels first; conformance is a part of its own."""
    kinds = sorted((p.name for p in (here / "tests").iterdir() if p.name != "conformance"),
                   key=lambda kind: (kind != "gpu", kind))
    return [test(kind, 60)(here, out, given) for kind in kinds]


ALL = (
    Part("conformance", "what is assumed of CUDA, number by number", 90,
         of(test("conformance", 90))),
    Part("costs", "every call of the driver against size, neighbours, threads, mappings", 240,
         of(costs)),
    Part("growth", "growing in place, against copying and the driver's own pools", 200,
         of(bench("growth_bench", 100), bench("driver_bench", 40), bench("append_bench", 40),
            bench("vector_bench", 30), bench("remap_bench", 30))),
    Part("torch", "training and serving with PyTorch, four allocators side by side", 430, of(torch)),
    Part("checkpoint", "suspend, handoff, migration, snapshot, against the copy engine", 300,
         of(bench("suspend_bench", 80), bench("handoff_bench", 40), bench("migration_bench", 80),
            bench("digest_bench", 20), bench("snapshot_bench", 80), bench("process_bench", 40),
            bench("image_bench", 40))),
    Part("allocator", "the caching allocator's hot path", 60, of(bench("allocator_bench", 60))),
    Part("tests", "all tests that need no hostcuda; `gpu`: with kernels that look at the data", 180,
         tests),
)


def pace(left, seconds):
    """What of its time each part may take, where `left` seconds are for all of `seconds`: at most 1."""
    return min(1.0, max(0.0, left) / sum(seconds)) if seconds else 1.0
