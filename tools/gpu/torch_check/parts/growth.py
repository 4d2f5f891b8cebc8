"""A tensor that doubles from 2 MiB on, as in programs that do not know its final length: by torch.cat and
by Tensor.resize_. Both copy; PyTorch has no operation that grows a tensor without a copy."""

import time

WEIGHT = 10
COLUMNS = (
    "method", "allocator", "reached_bytes", "total_seconds", "last_seconds", "peak_allocated_bytes",
    "peak_reserved_bytes", "peak_of_device_bytes", "utilisation",
)  # fmt: skip
BEGIN = 2 << 20


def measure(lab):
    end = (64 << 20) if lab.tiny else (32 << 30)
    lab.compare([{"method": method, "end_bytes": end} for method in ("cat", "resize_")])


def doubled_by_cat(torch, tensor):
    return torch.cat((tensor, tensor))


def doubled_by_resize(torch, tensor):
    return tensor.resize_(2 * tensor.numel())


METHODS = {"cat": doubled_by_cat, "resize_": doubled_by_resize}


def work(bench):
    torch, doubled = bench.torch, METHODS[bench.job["method"]]
    tensor = torch.full((BEGIN,), 7, dtype=torch.uint8, device=bench.device)
    sizes = []
    while tensor.numel() < bench.job["end_bytes"]:
        bench.wait()
        begin = time.perf_counter()
        tensor = doubled(torch, tensor)
        bench.wait()
        sizes.append({"bytes": tensor.numel(), "seconds": time.perf_counter() - begin})
        bench.gauge.sample()
    if int(tensor[0]) != 7 or int(tensor[BEGIN - 1]) != 7:
        raise RuntimeError("the tensor's beginning is not what it was")
    return {
        "reached_bytes": tensor.numel(),
        "total_seconds": sum(size["seconds"] for size in sizes),
        "last_seconds": sizes[-1]["seconds"],
        "sizes": sizes,
        **bench.gauge.figures(),
    }
