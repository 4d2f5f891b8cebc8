"""Warp on Stillmap: an allocator of one device. docs/frameworks.md

    import warp as wp, stillmap.warp
    wp.set_device_allocator("cuda:0", stillmap.warp.Allocator("cuda:0"))
"""

from __future__ import annotations

from typing import Any

from ._frameworks import free_if_open, open_heap, require

_wp = require("warp", adaptor="warp", package="warp-lang 1.19.0")


class Allocator:
    """Warp's Allocator protocol, on a CachingAllocator. Options are those of CachingAllocator.

    Streams: memory is for the device's current Warp stream. It is freed after the work of that one and of the one
    that is current when Warp frees; use on a third: allocator.record_use. Threads: safe.
    """

    deallocate_requires_context_guard = False  # a free makes no driver call that needs a context

    def __init__(self, device: Any = "cuda:0", **options: Any) -> None:
        self._device = _wp.get_device(device)
        if not self._device.is_cuda:
            raise ValueError(f"stillmap.warp: {self._device} is not a CUDA device")
        self.allocator = open_heap(self._device.ordinal, **{"tag": "warp", **options})

    def allocate(self, size_in_bytes: int) -> int:
        """Raises OutOfMemoryError; RuntimeError while a graph is captured: allocate before the capture."""
        if self._device.is_capturing:
            raise RuntimeError("stillmap.warp: allocate before the capture begins; a graph needs memory that stays")
        return self.allocator.allocate(size_in_bytes, self._device.stream)

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        """Nothing once the allocator is closed."""
        free_if_open(self.allocator, ptr, self._device.stream)


def use(**options: Any) -> list[Allocator]:
    """Gives each CUDA device an Allocator of its own, by wp.set_device_allocator. Returns them.

    wp.set_cuda_allocator would give all devices one object, which is not told the device.
    """
    made = []
    for device in _wp.get_cuda_devices():
        made.append(Allocator(device, **options))
        _wp.set_device_allocator(device, made[-1])
    return made
