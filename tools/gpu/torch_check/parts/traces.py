"""Records the allocations of real steps on a real GPU, workspaces of kernels included, with PyTorch's memory
history: for `gunzip -c NAME.pickle.gz | stillmap trace import - NAME.trace.zst`."""

import os

import models
import snapshot
from parts import serving
from training_step import Training

WEIGHT = 6
COLUMNS = ("trace", "events", "file_bytes", "file", "peak_allocated_bytes", "peak_reserved_bytes")
MOST_EVENTS = 2_000_000
STEPS = 6
# Short answers, so that requests go and others come within few events.
ROUNDS = 120
SERVED = {"at_once": 4, "most_prompt": 4096, "most_output": 64}
NAMES = ("gpt2_variable", "llama_variable", "llama_checkpointed", "serving")


def measure(lab):
    if lab.options.device != "cuda":
        lab.skip("PyTorch keeps a history of a GPU's memory only")
        return
    folder = os.path.join(lab.options.out, "traces")
    os.makedirs(folder, exist_ok=True)
    for index, name in enumerate(NAMES):
        if lab.share.spent():
            lab.skip(f"{name}: no time was left")
            continue
        path = os.path.join(folder, f"torch_{name}.pickle.gz")
        seconds = lab.share.for_one_of(len(NAMES) - index)
        then = "default" if index + 1 < len(NAMES) else None
        lab.row({"trace": name}, "default", {"trace": name, "path": path}, seconds, then)


def program(torch, device, tiny, name):
    """(what is repeated, how often)."""
    if name == "serving":
        load = serving.TINY if tiny else SERVED
        return serving.server(torch, device, tiny, load).round, ROUNDS
    model, kind = name.split("_")
    size = models.size_of(model, tiny)
    training = Training(
        torch, device, model, size, size["batch"], kind == "variable", kind == "checkpointed"
    )
    return training.step, STEPS


def work(bench):
    memory, path = bench.torch.cuda.memory, bench.job["path"]
    memory._record_memory_history("all", context=None, max_entries=MOST_EVENTS)
    step, times = program(bench.torch, bench.device, bench.tiny, bench.job["trace"])
    for _ in range(times):
        step()
    bench.wait()
    events = snapshot.save(memory._snapshot(), path)
    memory._record_memory_history(None)
    if events == 0:
        raise RuntimeError("the history is empty")
    return {
        "events": events,
        "file": os.path.basename(path),
        "file_bytes": os.path.getsize(path),
        **bench.gauge.figures(),
    }
