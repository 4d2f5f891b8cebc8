"""Training steps: GPT-2 and Llama, texts of equal and of varying length, with stored and with recomputed
activations, and as a CUDA graph."""

import allocators
import models
from training_step import Training, captured

WEIGHT = 40
COLUMNS = (
    "model", "lengths", "checkpointing", "graph", "allocator", "steps", "median_seconds",
    "p95_seconds", "peak_allocated_bytes", "peak_reserved_bytes", "peak_of_device_bytes",
    "utilisation",
)  # fmt: skip


def case(model, variable, checkpointing, graph=False):
    return {
        "model": model,
        "lengths": "variable" if variable else "fixed",
        "checkpointing": checkpointing,
        "graph": graph,
    }


# The most telling first: time may be too short for all.
CASES = [
    case("gpt2", False, False),
    case("llama", True, False),
    case("gpt2", False, False, graph=True),
    case("gpt2", True, True),
    case("gpt2", True, False),
    case("llama", True, True),
    case("llama", False, False),
    case("llama", False, True),
    case("gpt2", False, True),
]


def applies(of, allocator):
    if of["graph"] and allocator == allocators.STILLMAP:
        return (
            "an allocator that is plugged in is asked for no pools, so it cannot serve CUDA graphs"
        )
    return None


def measure(lab):
    cases = CASES
    if lab.options.device != "cuda":
        lab.skip("CUDA graphs: not without a GPU")
        cases = [c for c in CASES if not c["graph"]]
    lab.compare(cases, applies)


def work(bench):
    job = bench.job
    size = models.size_of(job["model"], bench.tiny)
    training = Training(
        bench.torch, bench.device, job["model"], size, size["batch"],
        job["lengths"] == "variable", job["checkpointing"], job["graph"],
    )  # fmt: skip
    if job["graph"]:
        step = captured(training)
    else:
        step = training.step
        for _ in range(training.WARM_UP):
            step()
            bench.gauge.sample()
    return bench.timed(step)
