"""What an engine with a growing cache has: its options, and, when the worker has made it, the memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..options import CacheOptions
from . import scheduling
from .free_blocks import FreeBlocks
from .memory import CacheMemory
from .placement import Placement

logger = logging.getLogger("vllm.stillmap")

_MiB = 1 << 20


class _GivenBuffer(TorchFunctionMode):
    """Answers vLLM's one call that allocates the cache."""

    def __init__(self, memory: CacheMemory, nbytes: int) -> None:
        super().__init__()
        self._memory, self._nbytes = memory, nbytes
        self.was_asked = False

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        if function is torch.zeros and arguments == (self._nbytes,) and named.get("dtype") is torch.int8:
            self.was_asked = True
            return self._memory.buffer
        return function(*arguments, **named)


class GrowingCache:
    """Raises ValueError for an engine that cannot have one."""

    def __init__(self, options: CacheOptions, vllm_config: Any) -> None:
        _check(vllm_config)
        self.options = options
        self.memory: CacheMemory | None = None
        scheduler = vllm_config.scheduler_config
        scheduler.scheduler_cls = scheduling.growing(scheduler.get_scheduler_cls(), self)

    @contextmanager
    def allocating(self, config: Any) -> Iterator[Any]:
        """Inside, the worker's cache is the arena's memory. Yields the configuration for it."""
        placement = Placement.of(config)
        spare = max(1, self.options.kv_spare // placement.bytes_per_block)
        device = torch.device("cuda", torch.cuda.current_device())
        self.memory = memory = CacheMemory(placement, spare, device)
        adapted = placement.adapted(config, memory.region_bytes)
        with _GivenBuffer(memory, adapted.kv_cache_tensors[0].size) as buffer:
            yield adapted
        if not buffer.was_asked:
            raise RuntimeError("stillmap.vllm: kv_cache: this version of vLLM allocates its cache in another way than "
                               "0.33: leave out the option")
        logger.info("stillmap: the KV cache has addresses for %d blocks (%.0f MiB), and memory for those in use, in page "
                    "groups of %.0f MiB", placement.blocks, placement.blocks * placement.bytes_per_block / _MiB,
                    memory.arena.layout["group_bytes"] / _MiB)

    def guard_warm_up(self, worker: Any) -> None:
        """vLLM's warm-up makes up steps with blocks from 1 on, which no scheduler has given out."""
        assert self.memory is not None
        memory = self.memory
        warm_up, execute = worker.compile_or_warm_up_model, worker.execute_model

        def execute_with_memory(output: Any, *arguments: Any, **named: Any) -> Any:
            blocks = max(_block_ids(output), default=0)
            if blocks and not memory.grow(blocks):
                raise RuntimeError(f"stillmap.vllm: kv_cache: vLLM warms up with {blocks} blocks, and the device has memory "
                                   f"for {memory.free}: free some, or give less max_num_batched_tokens")
            return execute(output, *arguments, **named)

        def compile_or_warm_up_model(*arguments: Any, **named: Any) -> Any:
            worker.execute_model = execute_with_memory
            try:
                return warm_up(*arguments, **named)
            finally:
                del worker.execute_model, worker.compile_or_warm_up_model
                memory.prepare(0)

        worker.compile_or_warm_up_model = compile_or_warm_up_model

    def connect(self, pool: Any, coordinator: Any) -> FreeBlocks:
        """The pool's free blocks are the arena's from now on."""
        memory = self.memory
        if memory is None or pool.num_gpu_blocks != memory.placement.blocks:
            raise RuntimeError("stillmap.vllm: kv_cache: the scheduler has no worker in its process, or another cache")
        per_block = memory.placement.bytes_per_block
        most_cached = (pool.num_gpu_blocks // 8 if self.options.kv_cached is None
                       else self.options.kv_cached // per_block)
        free = pool.free_block_queue = FreeBlocks(pool, memory, most_cached,
                                                  max(1, self.options.kv_spare // per_block // 2))
        count, allocate = coordinator.get_num_blocks_to_allocate, coordinator.allocate_new_blocks
        evict, reset = pool.evict_blocks, pool.reset_prefix_cache

        def get_num_blocks_to_allocate(*arguments: Any, **named: Any) -> int:
            n = count(*arguments, **named)
            hits = sum(b.ref_cnt == 0 and not b.is_null for group in named["new_computed_blocks"] for b in group)
            free.want(n, hits, named.get("apply_admission_cap", False))
            return n

        def allocate_new_blocks(request_id: str, *arguments: Any, **named: Any) -> Any:
            have = coordinator.single_type_managers[0].req_to_blocks.get(request_id)
            free.continued = have[-1].block_id if have and not have[-1].is_null else None
            try:
                return allocate(request_id, *arguments, **named)
            finally:
                free.continued = None

        def evict_blocks(block_ids: set[int]) -> None:
            cached = free.cached_among(block_ids)
            evict(block_ids)
            free.drop(cached)

        def reset_prefix_cache() -> bool:
            free.begin_step()  # else vLLM takes blocks whose memory is short for used ones
            done = reset()
            if done:
                free.drop_all()
                free.prepare(0)
            return done

        coordinator.get_num_blocks_to_allocate = get_num_blocks_to_allocate
        coordinator.allocate_new_blocks = allocate_new_blocks
        pool.evict_blocks = evict_blocks
        pool.reset_prefix_cache = reset_prefix_cache
        return free


def _block_ids(output: Any) -> Iterator[int]:
    given = [r.block_ids for r in output.scheduled_new_reqs]
    given += [ids for ids in output.scheduled_cached_reqs.new_block_ids if ids is not None]
    return (i for groups in given for ids in groups for i in ids)


def _check(vllm_config: Any) -> None:
    parallel = vllm_config.parallel_config
    if parallel.world_size != 1 or parallel.distributed_executor_backend not in (None, "uni"):
        raise ValueError(f"stillmap.vllm: kv_cache: the engine has {parallel.world_size} workers, by the executor "
                         f"{parallel.distributed_executor_backend!r}; the cache grows where one worker and the scheduler "
                         "are one process: use one GPU and the executor 'uni', or leave out the option")
    refused: Mapping[str, bool] = {
        "enable_sleep_mode": vllm_config.model_config.enable_sleep_mode,
        "kv_transfer_config": vllm_config.kv_transfer_config is not None,
        "speculative_config": vllm_config.speculative_config is not None,
        "enable_dbo": bool(getattr(parallel, "enable_dbo", False)),
    }
    for name, is_given in refused.items():
        if is_given:
            raise ValueError(f"stillmap.vllm: kv_cache: the cache cannot grow together with {name}: leave out one of them")
