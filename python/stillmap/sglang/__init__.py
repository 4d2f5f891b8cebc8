"""SGLang's KV cache on Stillmap: memory that follows the load, up and down, at addresses that stay.

    SGLANG_ENABLE_POST_CAPTURE_KV_SIZING=1 STILLMAP_SGLANG_KV_CACHE=grow python -m sglang.launch_server ...

SGLang finds register() by its entry point. docs/sglang.md

Read in SGLang 0.5.23 (sglang/srt/mem_cache/).
"""

from __future__ import annotations

import functools
from typing import Any

from .options import Options

_options: Options | None = None

__all__ = ["Options", "enable", "register", "slots_of"]


def register() -> None:
    """Called by SGLang in each of its processes. Does nothing without STILLMAP_SGLANG_KV_CACHE."""
    options = Options.read()
    if options is not None:
        enable(options)


def enable(options: Options | None = None) -> None:
    """Pools that are made with post-capture sizing from now on have growing memory. Idempotent; the last options count."""
    global _options
    from sglang.srt.mem_cache import memory_pool
    from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator

    from .buffers import GrowingBuffers

    _options = options or Options()
    if memory_pool.KvVmmBufferOwner is GrowingBuffers:
        return
    memory_pool.KvVmmBufferOwner = GrowingBuffers
    resize = BaseTokenToKVPoolAllocator.resize

    @functools.wraps(resize)
    def resize_and_follow(self: Any, config: Any) -> None:
        resize(self, config)
        _connect(self)

    BaseTokenToKVPoolAllocator.resize = resize_and_follow


def slots_of(allocator: Any) -> Any:
    """The GrowingSlots of an allocator, or None."""
    return allocator.__dict__.get("_stillmap_slots")


def _refuse_several_ranks() -> None:
    """Their schedulers must decide alike, and each would see the memory of its own device."""
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    if (ranks := torch.distributed.get_world_size()) > 1:
        raise RuntimeError(f"stillmap.sglang: the model runs on {ranks} ranks, and a KV cache that grows needs one: "
                           "unset STILLMAP_SGLANG_KV_CACHE, or use one rank")


def _connect(allocator: Any) -> None:
    """Of allocators that have one free list; others keep all memory that SGLang has asked for."""
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    from .buffers import GrowingBuffers
    from .slots import GrowingSlots

    assert _options is not None
    buffers = getattr(allocator.get_kvcache(), "_post_capture_owner", None)
    if type(allocator) not in (TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator):
        return
    if isinstance(buffers, GrowingBuffers) and slots_of(allocator) is None:
        _refuse_several_ranks()
        allocator._stillmap_slots = GrowingSlots(allocator, buffers, _options)
