"""What the adaptors for frameworks share: imports that say what is missing, heaps by device, late frees."""

from __future__ import annotations

import importlib
import threading
from types import ModuleType
from typing import Any

from ._native import CachingAllocator, InvalidArgumentError, NotSupportedError, device_info


def require(module: str, *, adaptor: str, package: str) -> ModuleType:
    """The framework's module. ImportError: names the package and the version that was tested."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"stillmap.{adaptor} needs {module}; tested with {package}: {error}", name=module) from error


def open_heap(device: int, **options: Any) -> CachingAllocator:
    """A CachingAllocator. Where nothing else is said, the devices that can access its memory may: they may copy from
    memory of cudaMalloc, which it replaces."""
    return CachingAllocator(device, **{"peer_devices": device_info(device)["peers"], **options})


def free_if_open(heap: CachingAllocator, ptr: int, last_used_on: Any = ...) -> None:
    """Frees a block. One of a closed allocator is gone already, and one in a forked child is the parent's:
    frameworks free late, and at a child's exit, so neither is an error."""
    try:
        if last_used_on is not ... and not heap.closed:
            heap.record_use(ptr, last_used_on)
        heap.free(ptr)
    except InvalidArgumentError:
        if not heap.closed:
            raise
    except NotSupportedError:
        return  # a forked child


class Heaps:
    """One CachingAllocator for each device, made at its first request. Threads: safe."""

    def __init__(self, tag: str) -> None:
        self._options: dict[str, Any] = {"tag": tag}
        self._open: dict[int, CachingAllocator] = {}
        self._lock = threading.Lock()

    def configure(self, **options: Any) -> None:
        """Options of CachingAllocator for heaps not made yet. RuntimeError: one is open."""
        with self._lock:
            if any(not heap.closed for heap in self._open.values()):
                raise RuntimeError("configure() comes before the first allocation: an allocator is open already")
            self._options.update(options)

    def of(self, device: int) -> CachingAllocator:
        """The device's heap; a new one after close()."""
        heap = self._open.get(device)
        if heap is not None and not heap.closed:
            return heap
        with self._lock:
            heap = self._open.get(device)
            if heap is None or heap.closed:
                heap = self._open[device] = open_heap(device, **self._options)
            return heap

    def close(self, device: int) -> None:
        """Closes the device's heap, if one is open."""
        heap = self._open.get(device)
        if heap is not None:
            heap.close()
