"""torch.cuda.MemPool objects: on which device they are made, and when they end.

PyTorch 2.8 ends the process where one ends that a CUDA graph still has, or while memory is allocated to any pool
(~MemPool asserts use_count() == 1; its emptyCache() asserts that no capture is under way). 2.14 does not.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import stillmap
from stillmap import _native

from ._plugin import object_of

_asserts = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) < (2, 14)
_lock = threading.RLock()  # ending one may collect garbage, in which there are others
_waiting: list[Any] = []
_inside = 0  # allocating() calls of all threads
_exiting = False


def make(device: int, allocator: Any = None) -> Any:
    """A torch.cuda.MemPool. It belongs to the device that is current when it is made; on another one PyTorch would
    serve its own memory for it, without a word."""
    with torch.cuda.device(device):
        return torch.cuda.MemPool(allocator)


@contextmanager
def allocating() -> Iterator[None]:
    """Around what allocates to a pool."""
    global _inside
    with _lock:
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
        end([])


@contextmanager
def exact(mem_pool: Any, pool: Any, all_threads: bool) -> Iterator[None]:
    """Around what begins and ends to allocate to a MemPool of a Pool: large tensors get segments of their own size."""
    try:
        _native._torch_begin_exact(mem_pool.id, pool.device, object_of(pool._allocator), all_threads)
    except stillmap.NotSupportedError:  # an earlier PyTorch: its own rules hold
        yield
        return
    try:
        yield
    finally:
        _native._torch_end_exact(mem_pool.id, pool.device)
        _native._torch_release_exact(pool.tag, pool.device)


def end(pools: list[Any]) -> None:
    """Takes the pools from the list, and drops each as soon as PyTorch can end it."""
    with _lock:
        _waiting.extend(pools)
        pools.clear()
        kept = [pool for pool in _waiting if _asserts and (_inside or pool.use_count() > 1)]
        if _exiting:
            for pool in kept:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))  # the process ends without its end
            kept.clear()
        dropped, _waiting[:] = list(_waiting), kept
    del dropped


@functools.cache
def innermost_serves() -> bool:
    """Of nested pools. In PyTorch 2.8 the outermost does. Tries it: allocates one byte."""
    device = torch.cuda.current_device()
    pools = [make(device), make(device)]
    with allocating(), torch.cuda.use_mem_pool(pools[0]), torch.cuda.use_mem_pool(pools[1]):
        tried = torch.empty(1, dtype=torch.uint8, device="cuda")
    served = bool(torch.cuda.memory_snapshot(pools[1].id))
    del tried
    end(pools)
    return served


@atexit.register
def _exit() -> None:
    global _exiting
    _exiting = True
    end([])
