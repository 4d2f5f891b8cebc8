"""torch.save and torch.load of one large tensor, in memory and on disk; and the machine's copy rates: host
to device, device to host (pinned memory), within the device."""

import os
import tempfile
import time

import allocators
import places
from figures import gigabytes_per_second, median
from output import label

WEIGHT = 12
COLUMNS = ("what", "place", "allocator", "bytes", "seconds", "gigabytes_per_s")
FIRST = 64 << 20  # so small that it tells the rate in no time
REPEATS = 10


def measure(lab):
    cuda = lab.options.device == "cuda"
    if not cuda:
        lab.skip("copies to and from pinned memory, and within the device: not without a GPU")
    # A file does not know by whom the memory was; a copy may.
    jobs = (
        [("default", {"what": "copies"}), (allocators.STILLMAP, {"what": "copies"})] if cuda else []
    )
    jobs += [("default", {"what": "files", "place": name}) for name, _, _ in places.candidates()]
    for index, (allocator, job) in enumerate(jobs):
        then = jobs[index + 1][0] if index + 1 < len(jobs) else None
        ask(lab, job, allocator, lab.share.for_one_of(len(jobs) - index), then)


def ask(lab, job, allocator, seconds, then):
    """The answer is several rows, or a reason."""
    most = FIRST if lab.tiny else (8 << 30)
    labels = {**job, "allocator": allocator}
    said = lab.answer(labels, allocator, {**job, "most_bytes": most}, seconds, then)
    if said is None:
        return
    if "skipped" in said:
        lab.skip(f"{label(labels)}: {said['skipped']}")
    for figures in said.get("rows", ()):
        lab.result.add({**figures, "allocator": allocator})


def work(bench):
    return copies(bench) if bench.job["what"] == "copies" else files(bench)


def copies(bench):
    """By events, which are on the device's own clock."""
    torch = bench.torch
    size = (16 << 20) if bench.tiny else (1 << 30)
    host = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    there = torch.zeros(size, dtype=torch.uint8, device="cuda")
    other = torch.zeros(4 * size, dtype=torch.uint8, device="cuda")
    source = torch.ones(4 * size, dtype=torch.uint8, device="cuda")
    jobs = {
        "pinned to device": (there, host),
        "device to pinned": (host, there),
        "within the device": (other, source),
    }
    rows = []
    for what, (to, of) in jobs.items():
        seconds = []
        for _ in range(REPEATS + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            to.copy_(of, non_blocking=True)
            end.record()
            end.synchronize()
            seconds.append(begin.elapsed_time(end) / 1e3)
        rows.append(row(what, None, of.numel(), median(seconds[1:])))
    return {"rows": rows}


def row(what, place, bytes_, seconds):
    return {
        "what": what,
        "place": place,
        "bytes": bytes_,
        "seconds": seconds,
        "gigabytes_per_s": gigabytes_per_second(bytes_, seconds),
    }


def files(bench):
    """First a small one, then as large a one as the time allows."""
    name, folder, in_memory = next(p for p in places.candidates() if p[0] == bench.job["place"])
    reason = places.usable(folder, in_memory, FIRST)
    if reason:
        return {"skipped": reason}
    with tempfile.TemporaryDirectory(prefix="torch_check_", dir=folder) as inside:
        path = os.path.join(inside, "tensor.pt")
        rows = save_and_load(bench, name, path, FIRST)
        rate = FIRST / sum(r["seconds"] for r in rows)
        left = bench.job["seconds"] - (time.monotonic() - bench.began)
        size = size_for(rate * left, bench.job["most_bytes"])
        while size > FIRST and places.usable(folder, in_memory, size):
            size //= 2
        if size > FIRST:
            rows = save_and_load(bench, name, path, size)
    return {"rows": rows}


def size_for(bytes_in_time, most):
    """The most, halved until it takes the time; never under the first."""
    while most > FIRST and most > bytes_in_time:
        most //= 2
    return max(FIRST, most)


def save_and_load(bench, place, path, size):
    """A file counts as saved when the disk has it; it is loaded from the disk, not from its
    cache."""
    torch = bench.torch
    tensor = torch.randint(0, 256, (size,), dtype=torch.uint8, device=bench.device)
    bench.wait()
    begin = time.perf_counter()
    torch.save(tensor, path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        saved = time.perf_counter() - begin
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin = time.perf_counter()
    again = torch.load(path, map_location=bench.device, weights_only=True)
    bench.wait()
    loaded = time.perf_counter() - begin
    same = torch.equal(again[:FIRST], tensor[:FIRST])
    os.remove(path)
    if not same:
        raise RuntimeError(f"{path}: what was loaded is not what was saved")
    return [row("save", place, size, saved), row("load", place, size, loaded)]
