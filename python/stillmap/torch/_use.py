"""Stillmap as the allocator of the whole process."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

import stillmap
from stillmap import _native

from . import _control, _multiprocessing, _statistics
from ._plugin import address_of, allocator_of, connect, device_index, route_copies

_lock = threading.Lock()
_used: dict[str, Any] | None = None


def use(*, tag: str | None = None, limit: int | None = None, peers: bool | None = None,
        page_size: int | None = None, share: str | None = None, share_limit: int | None = None,
        exportable: bool | None = None, control: bool | str | None = None) -> None:
    """Makes Stillmap the allocator of all of PyTorch's device memory. Call it before the first tensor on a GPU.

    tag: of the memory, for suspend(), resume() and snapshot(); "torch". limit: bytes on each device. peers: whether the
    devices that can access the memory may (default: yes). page_size: bytes in which memory is created and moved, a
    power of two (2 MiB); larger pages make growth cost less, and hold more memory. share: the name of a quota that
    other processes take part in, too (docs/sharing.md): each gives free memory to those that need more; of device n the
    name is followed by ".n", but for 0; "": none. share_limit: bytes of all of them on a device, where nobody takes
    part in it yet (default: the device's memory). exportable: other processes can map the memory, which
    torch.multiprocessing needs for CUDA tensors (default: no). control: True, or an address, starts a control server on
    each device that is used, with which `stillmap task suspend` and the like stop the program after a step of an
    optimizer, or at a safe_point() (docs/control.md#from-python). An option that is not given comes from
    STILLMAP_TORCH_TAG, _LIMIT, _PEERS, _PAGE_SIZE or _EXPORTABLE, STILLMAP_SHARE ("name" or "name:limit"), or
    STILLMAP_CONTROL (1, or an address). Of the two limits, and of what `set_per_process_memory_fraction` allows, the
    smallest holds. A second call with the same options does nothing.

    With it, `Tensor.record_stream`, `torch.cuda.empty_cache`, `set_per_process_memory_fraction`, CUDA graphs,
    `torch.cuda.memory_stats`, `memory_allocated` and the like work. PyTorch itself then has no MemPool, no snapshots
    and no memory history (it refuses them for every pluggable allocator; memory_map() is Stillmap's), and a request
    that fails is a RuntimeError that begins with "CUDA out of memory.". Where these matter, take pool().

    Raises BusyError (PyTorch's allocator has been used, or use() was called with other options), InvalidArgumentError
    (an empty tag; a variable has another value).
    """
    global _used
    options = {"tag": tag, "limit": limit, "peers": peers, "page_size": page_size, "share": share,
               "share_limit": share_limit, "exportable": exportable, "control": control}
    if tag is None:
        tag = os.environ.get("STILLMAP_TORCH_TAG") or "torch"
    if not tag:
        raise stillmap.InvalidArgumentError("stillmap.torch.use: the tag is empty")
    with _lock:
        if _used is not None:
            if _used == options:
                return
            raise stillmap.BusyError(f"stillmap.torch.use: it was called with other options before: {_used}")
        allocator = allocator_of(address_of("stillmap_malloc"), address_of("stillmap_free"))
        missing = connect(allocator)
        if "set_record_stream_fn" in missing:
            raise stillmap.NotSupportedError(
                f"stillmap.torch.use: PyTorch {torch.__version__} cannot tell an allocator of record_stream; "
                "2.1 and later can")
        # Before PyTorch's own: if that fails, the settings do no harm.
        _control.start(control)
        _native._torch_configure(tag, limit, peers, page_size, share, share_limit, exportable)
        try:
            torch._C._cuda_changeCurrentAllocator(allocator)
        except RuntimeError as e:
            raise stillmap.BusyError(
                "stillmap.torch.use: PyTorch's own allocator is in use already; call use() before the first tensor "
                "on a GPU, or take stillmap.torch.pool()") from e
        _used = options
        _statistics.install()
        _multiprocessing.install()
        route_copies(peers)


def in_use() -> bool:
    """Whether use() made Stillmap PyTorch's allocator."""
    return _used is not None


def stats(tag: str | None = None, device: Any = None) -> dict[str, Any]:
    """Statistics of a heap: of a pool's tag, or without a tag of the memory that use() serves. As
    CachingAllocator.stats(), in bytes. Empty before the first allocation. Makes no driver call."""
    return _native._torch_stats(tag, device_index(device)) or {}


def memory_map(tag: str | None = None, device: Any = None) -> Any:
    """A picture of that heap: a stillmap.MemoryMap, which a notebook draws. None before the first allocation."""
    return _native._torch_memory_map(tag, device_index(device))


def memory_summary(tag: str | None = None, device: Any = None) -> str:
    """The main figures of stats() as a text."""
    index = device_index(device)
    figures = stats(tag, index)
    title = f"stillmap, device {index}, {'tag ' + repr(tag) if tag else 'all of PyTorch'}"
    if not figures:
        return title + ": nothing was allocated"
    total = figures["total"]
    rows = {
        "allocated": total["live"], "its peak": total["live_peak"], "held from the device": total["committed"],
        "its peak ": figures["committed_peak"], "free, in whole pages": total["free_whole_pages"],
        "free, beside blocks": total["page_edges"], "freed, still in use by a stream": total["pending_free"],
    }
    lines = [title] + [f"  {name.strip():32}{value / (1 << 20):14,.1f} MiB" for name, value in rows.items()]
    lines.append(f"  {'pages moved':32}{figures['pages_moved']:14,}")
    lines.append(f"  {'requests that failed':32}{figures['out_of_memory']:14,}")
    return "\n".join(lines)
