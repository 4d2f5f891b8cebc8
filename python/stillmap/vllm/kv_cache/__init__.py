"""A KV cache that follows the load: `--additional-config '{"stillmap": {"kv_cache": "grow"}}'`.

The worker's KV tensors are on a stillmap.KVArena: addresses for all blocks, memory for those in use. The scheduler takes
its blocks from that arena. So both have to be in one process, which they are where vLLM has one worker.
docs/vllm.md#a-kv-cache-that-follows-the-load

Read in vLLM 0.33.0 (vllm/v1/core/, vllm/v1/worker/, vllm/v1/engine/core.py).
"""

from __future__ import annotations

import functools
from typing import Any

from ..options import CacheOptions


def install() -> None:
    """Hooks into vLLM's workers: what they do for an engine without the option stays as it is. Idempotent."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    if getattr(WorkerWrapperBase.initialize_from_config, "_stillmap", False):
        return
    init_device = WorkerWrapperBase.init_device
    initialize = WorkerWrapperBase.initialize_from_config

    @functools.wraps(init_device)
    def init_device_after_select(self: Any, *arguments: Any, **named: Any) -> Any:
        additional = getattr(self.vllm_config, "additional_config", None)
        options = CacheOptions.read(additional.get("stillmap") if isinstance(additional, dict) else None)
        if options is not None:
            from .engine import GrowingCache

            self._stillmap_cache = GrowingCache(options, self.vllm_config)
        return init_device(self, *arguments, **named)

    @functools.wraps(initialize)
    def initialize_from_config(self: Any, kv_cache_configs: list[Any]) -> None:
        cache = self.__dict__.get("_stillmap_cache")
        if cache is None:
            return initialize(self, kv_cache_configs)
        with cache.allocating(kv_cache_configs[self.global_rank]) as config:
            initialize(self, [config if i == self.global_rank else c for i, c in enumerate(kv_cache_configs)])
        cache.guard_warm_up(self.worker)
        return None

    initialize_from_config._stillmap = True  # type: ignore[attr-defined]
    WorkerWrapperBase.init_device = init_device_after_select
    WorkerWrapperBase.initialize_from_config = initialize_from_config
