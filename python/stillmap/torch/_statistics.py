"""torch.cuda.memory_allocated() and the like, for memory that use() serves.

PyTorch refuses them for every pluggable allocator. Programs call them to print a figure, and torch.compile to
decide, so use() puts these in the place of the functions of torch._C that they all end in.
"""

from __future__ import annotations

from typing import Any

import torch

from stillmap import _native

_METRICS = ("current", "peak", "allocated", "freed")


def _stat(current: int = 0, peak: int = 0, allocated: int = 0, freed: int = 0) -> dict[str, dict[str, int]]:
    zeros = dict.fromkeys(_METRICS, 0)
    return {"all": dict(zip(_METRICS, (current, max(current, peak), allocated, freed))),
            "small_pool": dict(zeros), "large_pool": dict(zeros)}


def device_stats(device: int) -> dict[str, Any]:
    """What torch._C._cuda_memoryStats returns. What Stillmap does not count is zero: PyTorch's division by size,
    segments, and bytes that were allocated and freed in total."""
    heap = _native._torch_stats(None, device) or {}
    total: dict[str, int] = heap.get("total", {})

    def of(key: str) -> int:
        return total.get(key, 0)

    flat = dict.fromkeys(_METRICS, 0)
    return {
        "allocation": _stat(of("blocks"), 0, of("allocations"), of("frees")),
        "segment": _stat(),
        "active": _stat(of("blocks")),
        "inactive_split": _stat(),
        "allocated_bytes": _stat(of("live"), of("live_peak")),
        "reserved_bytes": _stat(of("committed"), heap.get("committed_peak", 0)),
        "active_bytes": _stat(of("live") + of("pending_free"), of("live_peak")),
        "inactive_split_bytes": _stat(of("page_edges")),
        "requested_bytes": _stat(of("requested")),
        "oversize_allocations": dict(flat),
        "oversize_segments": dict(flat),
        "max_split_size": -1,
        "num_alloc_retries": 0,
        "num_ooms": heap.get("out_of_memory", 0),
        "num_sync_all_streams": heap.get("host_waits", 0),
        "num_device_alloc": heap.get("pages_created", 0),
        "num_device_free": heap.get("pages_released", 0),
        "num_oom_rejections": 0,
    }


def _reset_peaks(device: int) -> None:
    _native._torch_reset_peaks(None, device)


def _reset_nothing(device: int) -> None:
    """The counters since the start are not reset."""


def install() -> None:
    """Where PyTorch has these functions: torch.accelerator has them since 2.9."""
    for name, ours in (
            ("_cuda_memoryStats", device_stats), ("_cuda_resetPeakMemoryStats", _reset_peaks),
            ("_cuda_resetAccumulatedMemoryStats", _reset_nothing),
            # torch.accelerator asks the native allocator, which is not in use: it did nothing, without a word.
            ("_accelerator_isAllocatorInitialized", torch.cuda.is_initialized),
            ("_accelerator_emptyCache", torch._C._cuda_emptyCache),
            ("_accelerator_getDeviceStats", device_stats), ("_accelerator_resetPeakStats", _reset_peaks),
            ("_accelerator_resetAccumulatedStats", _reset_nothing)):
        if hasattr(torch._C, name):
            setattr(torch._C, name, ours)
