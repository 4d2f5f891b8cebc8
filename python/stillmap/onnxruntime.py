"""ONNX Runtime on Stillmap: the CUDA provider's three external functions. docs/frameworks.md

    memory = stillmap.onnxruntime.Allocator(device=0)
    session = onnxruntime.InferenceSession(model, providers=[("CUDAExecutionProvider", memory.provider_options())])

This module needs no ONNX Runtime: it makes numbers for its options (tested: onnxruntime-gpu 1.31.1).
"""

from __future__ import annotations

import ctypes
from typing import Any

from ._frameworks import free_if_open
from ._native import CachingAllocator

_ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_EMPTY = ctypes.CFUNCTYPE(None)


class Allocator:
    """One for each session: the functions name no stream, so memory is reused in the order of one.

    Two sessions with one Allocator could write to each other's memory, because each computes on a stream of its
    own. Cost: the functions are Python's, so each call takes the GIL. Options are those of CachingAllocator.
    A failure returns NULL, for which ONNX Runtime raises; `error` then has the exception.
    """

    def __init__(self, device: int = 0, **options: Any) -> None:
        self.allocator = CachingAllocator(device, **{"tag": "onnxruntime", **options})
        self.error: BaseException | None = None
        self._functions = (_ALLOC(self._alloc), _FREE(self._free), _EMPTY(self._empty))
        # A session may free after this object is gone; functions that C code may call live for ever.
        for function in self._functions:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))

    def provider_options(self) -> dict[str, str]:
        """Options of CUDAExecutionProvider: the device, and the addresses, as decimal strings."""
        names = ("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache")
        addresses = (str(ctypes.cast(f, ctypes.c_void_p).value) for f in self._functions)
        return {"device_id": str(self.allocator.device), **dict(zip(names, addresses, strict=True))}

    def _alloc(self, nbytes: int) -> int | None:
        try:
            return self.allocator.allocate(nbytes) or None
        except BaseException as error:  # C code cannot pass it on
            self.error = error
            return None

    # ctypes reports what these raise as unraisable, on stderr, and returns to C.
    def _free(self, ptr: int | None) -> None:
        free_if_open(self.allocator, ptr or 0)

    def _empty(self) -> None:
        if not self.allocator.closed:
            self.allocator.empty_cache()
