"""Gives vLLM Stillmap's allocator where an engine selected the backend.

vLLM's workers ask `vllm.device_allocator.get_mem_allocator_instance()` for the allocator that sleep mode
works on, and create the backend at the first sleep, when everything is allocated. So the function is
replaced by one that returns ours once a worker of this process has been given such a configuration.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from .options import Options

_options: Options | None = None  # of the engine that selected the backend


def selected() -> Options | None:
    return _options


def select(vllm_config: Any) -> None:
    """Notes what a worker's configuration says. Raises ValueError for wrong options."""
    global _options
    from . import BACKEND

    model_config = getattr(vllm_config, "model_config", None)
    if getattr(model_config, "sleep_mode_backend", None) != BACKEND:
        return
    additional = getattr(vllm_config, "additional_config", None)
    given = additional.get("stillmap") if isinstance(additional, dict) else None
    _options = Options.read(given)


def install() -> None:
    """Idempotent."""
    from . import BACKEND
    import vllm.device_allocator as device_allocator
    from vllm.config import CUDAGraphMode, VllmConfig
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = device_allocator.get_mem_allocator_instance
    if getattr(original, "_stillmap", False):
        return

    @functools.wraps(original)
    def get_mem_allocator_instance() -> Any:
        if _options is None:
            return original()
        from .allocator import StillmapAllocator

        return StillmapAllocator.get_instance()

    get_mem_allocator_instance._stillmap = True  # type: ignore[attr-defined]
    device_allocator.get_mem_allocator_instance = get_mem_allocator_instance
    # Modules that were imported earlier have the function under a name of their own.
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and getattr(module, "get_mem_allocator_instance", None) is original:
            module.get_mem_allocator_instance = get_mem_allocator_instance  # type: ignore[attr-defined]

    # The configuration says whether CUDA graphs sleep too, and looks for the name of vLLM's own backend.
    theirs = VllmConfig.use_cumem_cudagraph_pool.fget

    def use_cumem_cudagraph_pool(self: Any) -> bool:
        model = self.model_config
        if getattr(model, "sleep_mode_backend", None) != BACKEND:
            return bool(theirs(self))
        return bool(model.enable_sleep_mode and model.sleep_mode_offload_cudagraph
                    and self.compilation_config.cudagraph_mode != CUDAGraphMode.NONE)

    VllmConfig.use_cumem_cudagraph_pool = property(use_cumem_cudagraph_pool, doc=theirs.__doc__)

    init_device = WorkerWrapperBase.init_device

    @functools.wraps(init_device)
    def init_device_after_select(self: Any, *arguments: Any, **named: Any) -> Any:
        select(self.vllm_config)
        return init_device(self, *arguments, **named)

    WorkerWrapperBase.init_device = init_device_after_select
