"""CuPy on Stillmap. docs/frameworks.md

    import stillmap.cupy
    stillmap.cupy.use()          # arrays made from now on, on every device
"""

from __future__ import annotations

from typing import Any

from ._frameworks import Heaps, free_if_open, require
from ._native import CachingAllocator

_memory = require("cupy.cuda.memory", adaptor="cupy", package="cupy-cuda13x 14.2.0")
_cuda = require("cupy.cuda", adaptor="cupy", package="cupy-cuda13x 14.2.0")
_heaps = Heaps("cupy")
configure = _heaps.configure


def heap(device: int = 0) -> CachingAllocator:
    """The allocator of a device: its stats, memory_map, empty_cache. Made if there is none."""
    return _heaps.of(device)


_allocated_by: dict[int, CachingAllocator] = {}  # by address: a heap may have been closed and made again


def malloc(nbytes: int, device: int) -> int:
    """For CuPy's current stream of this thread. OutOfMemoryError is a MemoryError; a callback's exception passes."""
    source = _heaps.of(device)
    ptr = source.allocate(nbytes, _cuda.get_current_stream())
    if ptr:
        _allocated_by[ptr] = source
    return ptr


def free(ptr: int, device: int) -> None:
    """On the stream it was allocated for, as CuPy's own MemoryPool does."""
    source = _allocated_by.pop(ptr, None)
    if source is not None:
        free_if_open(source, ptr)


def allocator() -> Any:
    """A cupy.cuda.PythonFunctionAllocator, for set_allocator(allocator().malloc) or using_allocator.

    An array used on another stream than that of its making: synchronise, or stillmap.cupy.heap().record_use,
    before it is deleted, as with CuPy's own pool.
    """
    return _memory.PythonFunctionAllocator(malloc, free)


def c_allocator(source: CachingAllocator) -> Any:
    """A cupy.cuda.CFunctionAllocator on one allocator: no Python call, and no stream either.

    CFunctionAllocator names none, so memory is ordered by the legacy default stream: for programs that use only
    that. On failure CuPy gets NULL; stillmap.last_error() has the reason.
    """
    return _memory.CFunctionAllocator(source.c_param, source.c_malloc, source.c_free, source)


def use() -> None:
    """Makes allocator() CuPy's allocator, in every thread; cupy.cuda.set_allocator() goes back to none."""
    _memory.set_allocator(allocator().malloc)
