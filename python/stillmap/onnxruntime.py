"""ONNX Runtime on Stillmap: the CUDA provider's three external functions. docs/frameworks.md

    memory = stillmap.onnxruntime.Allocator(device=0)
    session = onnxruntime.InferenceSession(model, providers=[("CUDAExecutionProvider", memory.provider_options())])

This module needs no ONNX Runtime: it makes numbers for its options (tested: onnxruntime-gpu 1.31.1).
"""

from __future__ import annotations

from typing import Any

from ._frameworks import open_heap


class Allocator:
    """For one session or several, and for runs of several threads: a session with external functions computes on
    the legacy default stream, which the memory is ordered by.

    Cost: the functions are C functions; no call takes the GIL. Options are those of CachingAllocator. A failure
    returns NULL, for which ONNX Runtime raises; `stillmap.last_error()`, on the thread that ran, has the reason.
    The functions outlive this object: after `allocator.close()` they allocate nothing and free nothing.
    NotSupportedError: a process has functions for 64 allocators, closed ones included.
    """

    def __init__(self, device: int = 0, **options: Any) -> None:
        self.allocator = open_heap(device, **{"tag": "onnxruntime", **options})

    def provider_options(self) -> dict[str, str]:
        """Options of CUDAExecutionProvider: the device, and the addresses, as decimal strings.

        ONNX Runtime refuses `user_compute_stream` beside them.
        """
        names = ("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache")
        addresses = map(str, self.allocator.c_functions)
        return {"device_id": str(self.allocator.device), **dict(zip(names, addresses, strict=True))}
