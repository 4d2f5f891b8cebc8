"""A process that measures one thing with one allocator and exits.

    worker.py ALLOCATOR DEVICE LIBRARY

Loads PyTorch, reads one line from standard input (a job as JSON), writes the answer to the file
that the job names. A process is for one job, since no allocator forgets its peaks and its
fragments; it can be started before it is needed, since nothing touches the device before the job.
"""

import importlib
import json
import os
import sys
import time
import traceback

import allocators
from figures import median, per_step, percentile
from gauge import Gauge, NoGauge
from pace import Pace, timed


class Bench:
    """What a part's work() finds: PyTorch, the device, the gauge, the job and its time."""

    def __init__(self, torch, allocator, device, library, job, began):
        self.torch, self.allocator, self.device, self.job = torch, allocator, device, job
        self.tiny = job["tiny"]
        self.began = began
        self.library = library
        self.hooks = (
            allocators.connect(torch, library) if allocator == allocators.STILLMAP else None
        )
        self.gauge = NoGauge()
        if device == "cuda" and job["part"] != "cuda_core":  # which has a context of its own
            self.gauge = Gauge(torch, allocator, library)

    def pace(self):
        """Counted from the job's beginning: what it took to build the model is part of its time."""
        return Pace(self.job["seconds"], self.job.get("steps"), began=self.began)

    def timed(self, step):
        """The figures of a step that comes again and again, after its warm-up."""
        before = self.gauge.counters()
        seconds = timed(step, self.pace(), self.wait, self.gauge.sample)
        after = self.gauge.counters()
        return {
            "steps": len(seconds),
            "timed_seconds": sum(seconds),
            "median_seconds": median(seconds),
            "p95_seconds": percentile(seconds, 0.95),
            **self.gauge.figures(),
            "calls_per_step": per_step(before, after, len(seconds)),
        }

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()


# An allocator that is plugged in cannot throw PyTorch's own error; and a library that finds no
# memory for itself says it in its way.
OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED")


def out_of_memory(error):
    said = str(error)
    return type(error).__name__ == "OutOfMemoryError" or any(
        words in said for words in OUT_OF_MEMORY
    )


def answer(torch, allocator, device, library, job):
    began = time.monotonic()
    try:
        part = importlib.import_module(f"parts.{job['part']}")
        bench = Bench(torch, allocator, device, library, job, began)
        result = part.work(bench)
        if bench.hooks is not None:
            result["hooks"] = bench.hooks
        return {"result": result}
    except Exception as error:  # whatever it is: it becomes a row, and the others go on
        traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        return {"error": f"{type(error).__name__}: {first}", "out_of_memory": out_of_memory(error)}


def main():
    allocator, device, library = sys.argv[1:4]
    import torch
    import torch._dynamo  # noqa: F401  the first optimizer would load it, in the job's time

    if device == "cpu":  # its models are too small for more, and the machine may be busy
        torch.set_num_threads(1)
    line = sys.stdin.readline()
    if not line:  # it was not needed
        return
    job = json.loads(line)
    said = answer(torch, allocator, device, library, job)
    with open(job["answer"] + ".part", "w", encoding="utf-8") as out:
        json.dump(said, out)
    os.replace(job["answer"] + ".part", job["answer"])


if __name__ == "__main__":
    main()
