"""cuda.core on Stillmap: a MemoryResource, and buffers that grow at their address. docs/frameworks.md

    from cuda.core import Device
    from stillmap.cuda_core import MemoryResource

    device = Device(); device.set_current()
    device.memory_resource = MemoryResource(device.device_id)   # Device.allocate uses it from now on
"""

from __future__ import annotations

from typing import Any

from ._frameworks import free_if_open, open_heap, require
from ._native import CachingAllocator, GrowableBuffer, NotSupportedError, OutOfMemoryError

_core = require("cuda.core", adaptor="cuda_core", package="cuda-core 1.2.2")


def _of_a_graph(stream: Any) -> bool:
    # A capturing Stream is not recognised here: its allocations would live outside the graph.
    return not isinstance(stream, _core.Stream) and hasattr(stream, "begin_building")


def _named(error: OutOfMemoryError) -> OutOfMemoryError:
    # Programs for cuda.core look for the driver's name of the error, which its own resources raise.
    named = OutOfMemoryError(f"CUDA_ERROR_OUT_OF_MEMORY: {error}")
    named.__dict__.update(error.__dict__)
    return named


class MemoryResource(_core.MemoryResource):  # type: ignore[misc]
    """Stream-ordered device memory from a CachingAllocator.

    Options are those of CachingAllocator (tag, limit, peer_devices, on_out_of_memory, ...), or `allocator=` to
    share an existing one. Threads: safe. Cost: no driver call while free memory fits.
    """

    def __init__(self, device_id: int = 0, *, allocator: CachingAllocator | None = None, **options: Any) -> None:
        if allocator is not None and (options or allocator.device != device_id):
            raise ValueError("MemoryResource: an allocator brings its device and its options")
        self._allocator = allocator or open_heap(device_id, **{"tag": "cuda_core", **options})

    @property
    def allocator(self) -> CachingAllocator:
        return self._allocator

    def allocate(self, size: int, *, stream: Any) -> Any:
        """A Buffer for work queued on the stream. It is freed on the stream that Buffer.close() names, or on this.

        Errors: OutOfMemoryError (a MemoryError); InvalidArgumentError after the allocator's close();
        NotSupportedError for a GraphBuilder: as with DeviceMemoryResource, a graph's memory is
        GraphMemoryResource's.
        """
        if stream is None:
            raise TypeError("MemoryResource.allocate: pass a stream; device.default_stream is the default one")
        if _of_a_graph(stream):
            raise NotSupportedError("MemoryResource.allocate: a graph's memory comes from GraphMemoryResource")
        try:
            ptr = self._allocator.allocate(size, stream)
        except OutOfMemoryError as error:
            raise _named(error) from error
        try:
            return _core.Buffer.from_handle(ptr, size, mr=self, stream=stream)
        except BaseException:
            self._allocator.free(ptr)
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Frees after the work queued on the stream, and on the one of allocate(). Nothing once closed."""
        free_if_open(self._allocator, int(ptr), stream)

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return False

    @property
    def is_managed(self) -> bool:
        return False

    @property
    def device_id(self) -> int:
        return self._allocator.device


def allocate_growable(size: int, *, reserve: int, device_id: int = 0, tag: str = "cuda_core") -> Any:
    """A Buffer that grow() can make as large as `reserve` bytes of addresses. Only `size` costs memory.

    The memory lives while a Buffer of it does: Buffer.owner is the stillmap.GrowableBuffer. It is released
    after all work that uses it, whatever the stream. Errors: NotSupportedError without mapped pages.
    """
    memory = GrowableBuffer(size, device=device_id, reserve=max(reserve, size), tag=tag)
    if not memory.in_place:
        memory.close()
        raise NotSupportedError("allocate_growable: the device cannot map pages, so growth would move the buffer")
    return _core.Buffer.from_handle(memory.address, size, owner=memory)


def grow(buffer: Any, nbytes: int, *, stream: Any) -> Any:
    """A Buffer of `nbytes` at the same address; the old one, and pointers in kernels and graphs, stay valid.

    cuda.core fixes a Buffer's size when it is made, hence the new object. Its own
    VirtualMemoryResource.modify_allocation may return another address. Cost: maps pages, copies nothing.
    Errors: TypeError (not of allocate_growable), ValueError (smaller, or above the reservation),
    OutOfMemoryError; the buffer is then as before.
    """
    memory = buffer.owner
    if not isinstance(memory, GrowableBuffer):
        raise TypeError("grow: the buffer is not one of stillmap.cuda_core.allocate_growable")
    if not memory.nbytes <= nbytes <= memory.reserved:
        raise ValueError(f"grow: {nbytes} bytes; it has {memory.nbytes}, and addresses for {memory.reserved}")
    memory.resize(nbytes, stream)
    return _core.Buffer.from_handle(memory.address, nbytes, owner=memory)
