"""The largest batch that trains in 16 GiB with texts of varying length: fragmentation makes it smaller."""

import ballast
import models
from launcher import WorkerFailed
from output import label, say
from search import largest
from training_step import Training

WEIGHT = 24
COLUMNS = (
    "model", "allocator", "largest", "failed_at", "trials", "median_seconds",
    "peak_allocated_bytes", "peak_reserved_bytes", "peak_of_device_bytes", "utilisation",
)  # fmt: skip
MEMORY = 16 << 30
STEPS = 8
# Short texts: many fit, so that a difference of some per cent shows.
FULL = {"length": 256, "hint": 40, "most": 512, "step": 4}
TINY = {"length": 32, "hint": 2, "most": 4, "step": 1}


def measure(lab):
    say_of = TINY if lab.tiny else FULL
    if lab.options.device != "cuda":
        lab.skip("no memory is taken away without a GPU: the search ends at its upper end")
    hint, step = say_of["hint"], say_of["step"]
    for index, allocator in enumerate(lab.allocators):
        if lab.share.spent():
            lab.skip(f"{allocator}: no time was left")
            continue
        # The first search has no answer of another to begin at.
        twice = 1 if index == 0 and len(lab.allocators) > 1 else 0
        seconds = lab.share.for_one_of(len(lab.allocators) - index - twice)
        row = search_with(lab, allocator, hint, step, say_of, seconds)
        if row.get("largest"):
            hint, step = row["largest"], 1


def search_with(lab, allocator, hint, step, say_of, seconds):
    labels = {"model": "gpt2", "allocator": allocator}
    row = dict(labels)
    trials, end = [], lab.share.left() - seconds

    def fits(batch):
        job = {"batch": batch, "length": say_of["length"], "steps": STEPS}
        try:
            best = lab.ask(allocator, job, seconds / 4, then=allocator)
        except WorkerFailed as failure:
            if not failure.out_of_memory:
                raise
            best = None
        trials.append({"batch": batch, "fits": best is not None})
        say(f"{lab.part}: {label(labels)}: {batch} {'fits' if best else 'does not fit'}")
        if best:
            row.update(best)
        return best is not None

    def more_time():
        return not trials or lab.share.left() > end

    try:
        good, bad = largest(fits, hint, say_of["most"], step, more_time)
        row.update(largest=good, failed_at=bad, complete=good >= say_of["most"] or bad == good + 1)
    except WorkerFailed as failure:
        row["error"] = str(failure)
    row.update(trials=len(trials), tried=trials)
    return lab.result.add(row)


def work(bench):
    size = dict(models.size_of("gpt2", bench.tiny), length=bench.job["length"])
    if bench.device == "cuda":
        ballast.open_libraries(bench.torch)
        ballast.leave(bench.torch, MEMORY)
        bench.gauge.begin()
    training = Training(bench.torch, bench.device, "gpt2", size, bench.job["batch"], True, False)
    for _ in range(training.WARM_UP):
        training.step()
    return bench.timed(training.step)
