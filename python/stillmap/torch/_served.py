"""What PyTorch does not say of a pool's requests: that another allocator served them, and why ours refused one."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import stillmap
from stillmap import _native


def _allocations(device: int) -> int:
    """How often PyTorch has allocated on a device."""
    return int(torch._C._cuda_memoryStats(device)["allocation"]["all"]["allocated"])


@contextmanager
def checked(tag: str, device: int) -> Iterator[None]:
    """Inside of a pool's context. Compares what PyTorch allocated with the requests that reached the tag's heap."""
    before = [_allocations(d) for d in range(torch.cuda.device_count())]
    heap = _heap_requests(tag, device)
    yield
    if _heap_requests(tag, device) != heap:
        return
    grown = [d for d, n in enumerate(before) if _allocations(d) != n]
    if device in grown:
        _probe(tag, device)
    elif grown:
        warnings.warn(
            f"stillmap.torch.Pool.use: nothing was allocated on cuda:{device}, the device of pool {tag!r}; memory that "
            f"was allocated on cuda:{grown[0]} is not the pool's. For that device take pool({tag!r}, "
            f"device={grown[0]})", RuntimeWarning, stacklevel=4)


def _heap_requests(tag: str, device: int) -> int:
    heap = _native._torch_stats(tag, device)
    return 0 if heap is None else heap["total"]["allocations"] + heap["out_of_memory"]


def _probe(tag: str, device: int) -> None:
    """PyTorch allocated, and did not ask us: from memory that the pool has cached, on another thread, or elsewhere."""
    try:
        probe = torch.empty(1, dtype=torch.uint8, device=f"cuda:{device}")
    except torch.OutOfMemoryError:
        return
    if _native._torch_owns(tag, device, probe.data_ptr()):
        return
    raise stillmap.NotSupportedError(
        f"stillmap.torch.Pool.use: PyTorch {torch.__version__} allocated memory of its own inside of pool {tag!r} on "
        f"cuda:{device}, without the tag and its limit. It serves no pool inside of another pool before 2.14, where "
        "PyTorch's caching was disabled, and, before 2.14, where expandable_segments is on")


@functools.cache
def install() -> None:
    """Lets torch.OutOfMemoryError say why a pool refused. PyTorch's own text cannot: the allocator returned NULL."""
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") == "1":
        raise stillmap.NotSupportedError(
            "stillmap.torch.pool: PYTORCH_NO_CUDA_MEMORY_CACHING is set, with which PyTorch serves no pools; unset it")
    if torch.cuda.get_allocator_backend() != "native":
        raise stillmap.NotSupportedError(
            f"stillmap.torch.pool: PyTorch's allocator is {torch.cuda.get_allocator_backend()!r}, which has no pools; "
            "remove backend: from PYTORCH_CUDA_ALLOC_CONF")
    original = torch.OutOfMemoryError.__init__

    def __init__(self: BaseException, *arguments: Any) -> None:
        reason = _native._torch_take_refusal()
        if reason and arguments:
            arguments = (f"{arguments[0]} Stillmap refused it: {reason}", *arguments[1:])
        original(self, *arguments)

    torch.OutOfMemoryError.__init__ = __init__  # type: ignore[method-assign]
