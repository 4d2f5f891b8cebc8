"""RMM on Stillmap, from Python. docs/frameworks.md

    rmm.mr.set_current_device_resource(stillmap.rmm.resource())

RMM's own page calls CallbackMemoryResource an interface for debugging: each allocation takes the GIL and calls
Python. C++ programs use Stillmap's resource for cuda::mr, which calls none.
"""

from __future__ import annotations

from typing import Any

from ._frameworks import free_if_open, open_heap, require
from ._native import CachingAllocator

_mr = require("rmm.mr", adaptor="rmm", package="rmm-cu13 26.10.0")


def resource(device: int = 0, *, allocator: CachingAllocator | None = None, **options: Any) -> Any:
    """An rmm.mr.CallbackMemoryResource on a CachingAllocator; options are its. Stream-ordered.

    Errors: an OutOfMemoryError, which is a MemoryError, becomes std::bad_alloc in C++ and MemoryError in Python.
    A free after the allocator's close() does nothing.
    """
    if allocator is not None and (options or allocator.device != device):
        raise ValueError("stillmap.rmm.resource: an allocator brings its device and its options")
    heap = allocator or open_heap(device, **{"tag": "rmm", **options})

    def allocate(nbytes: int, stream: Any) -> int:
        return heap.allocate(nbytes, stream)

    def deallocate(ptr: int, nbytes: int, stream: Any) -> None:
        free_if_open(heap, ptr, stream)

    return _mr.CallbackMemoryResource(allocate, deallocate)
