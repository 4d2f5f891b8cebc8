"""When torch.cuda.MemPool objects end.

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

_asserts = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) < (2, 14)
_lock = threading.RLock()  # ending one may collect garbage, in which there are others
_waiting: list[Any] = []
_inside = 0  # allocating() calls of all threads
_exiting = False


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
    pools = [torch.cuda.MemPool(), torch.cuda.MemPool()]
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
