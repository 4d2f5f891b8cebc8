"""Numba on Stillmap: an External Memory Manager, for device memory. docs/frameworks.md

    NUMBA_CUDA_MEMORY_MANAGER=stillmap.numba python program.py

or, before the first use of a device, `numba.cuda.set_memory_manager(stillmap.numba.MemoryManager)`.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from ._frameworks import Heaps, free_if_open, require
from ._native import CachingAllocator, NotSupportedError, OutOfMemoryError

_cuda = require("numba.cuda", adaptor="numba", package="numba-cuda 0.30.4, numba 0.68.1")
_driver = require("numba.cuda.cudadrv.driver", adaptor="numba", package="numba-cuda 0.30.4, numba 0.68.1")

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_heaps = Heaps("numba")
configure = _heaps.configure


def allocator(device: int = 0) -> CachingAllocator:
    """The allocator of a device: its stats, memory_map, empty_cache. Made if there is none."""
    return _heaps.of(device)


class MemoryManager(_cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Device memory from Stillmap; pinned and managed memory from Numba's own code.

    Streams: Numba names none, neither here nor when it frees. So frees are collected, as Numba collects its
    own (CUDA_DEALLOCS_COUNT, CUDA_DEALLOCS_RATIO), and the context is synchronised once for each batch, where
    Numba calls cuMemFree, which waits too, for each. Memory is then safe to reuse on every stream.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._queued: deque[int] = deque()  # frees that wait in self.deallocations
        self._batch: deque[tuple[CachingAllocator, int]] = deque()

    @property
    def interface_version(self) -> int:
        return 1

    def initialize(self) -> None:
        """What Numba may hold back before it frees is a part of the device's memory."""
        self.deallocations.memory_capacity = self.get_memory_info().total

    def memalloc(self, size: int) -> Any:
        """Raises Numba's CudaAPIError with CUDA_ERROR_OUT_OF_MEMORY, after pending frees were made."""
        heap = _heaps.of(self.context.device.id)
        ptr = self._attempt_allocation(lambda: _allocate(heap, max(size, 1)))
        memory = _driver.AutoFreePointer(weakref.proxy(self.context), ptr, size,
                                         finalizer=_finalizer(self, heap, ptr, size))
        # Not the address alone: a heap made after close() may give one that an array of the old heap still has.
        self.allocations[heap, ptr] = memory
        return memory.own()

    def get_memory_info(self) -> Any:
        """The driver's (free, total). Free memory that the allocator keeps counts as used."""
        free, total = _driver.driver.cuMemGetInfo()
        return _cuda.MemoryInfo(free=free, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        raise NotSupportedError(
            "stillmap.numba: CUDA's legacy IPC does not work with mapped pages. Share memory that Numba's own "
            "manager, or cudaMalloc, has allocated")

    def reset(self) -> None:
        """Frees all that was allocated in the context, and gives the pages back to the device."""
        super().reset()
        self._flush()
        # The device's primary context may be destroyed next, with the allocator's events.
        _heaps.close(self.context.device.id)

    def _release(self, item: tuple[CachingAllocator, int]) -> None:
        # Called by deallocations.clear(), which empties the queue: the last of a batch frees all.
        self._batch.append(item)
        if self._queued:
            self._queued.popleft()
        if not self._queued:
            self._flush()

    def _flush(self) -> None:
        batch = []
        while self._batch:
            batch.append(self._batch.popleft())
        try:
            if any(not heap.closed for heap, _ in batch):
                self._synchronize()
        except BaseException:  # an error of the device, or Ctrl-C: the next batch frees these, too
            self._batch.extend(batch)
            raise
        for heap, ptr in batch:
            free_if_open(heap, ptr)

    def _synchronize(self) -> None:
        # The context of this manager, which need not be this thread's: finalizers run anywhere.
        _driver.driver.cuCtxPushCurrent(self.context.handle)
        try:
            _driver.driver.cuCtxSynchronize()
        finally:
            _driver.driver.cuCtxPopCurrent()


def _allocate(heap: CachingAllocator, size: int) -> int:
    try:
        return heap.allocate(size)
    except OutOfMemoryError as error:
        raise _driver.CudaAPIError(_OUT_OF_MEMORY, str(error)) from error


def _finalizer(manager: MemoryManager, heap: CachingAllocator, ptr: int, size: int) -> Any:
    allocations, deallocations = manager.allocations, manager.deallocations

    def finalize() -> None:
        allocations.pop((heap, ptr), None)
        manager._queued.append(ptr)
        deallocations.add_item(manager._release, (heap, ptr), size)

    return finalize


_numba_memory_manager = MemoryManager  # what NUMBA_CUDA_MEMORY_MANAGER looks for
