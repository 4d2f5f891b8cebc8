"""The slots of SGLang's token allocator: those without memory are withheld, and come with the memory."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch

import stillmap

from .buffers import GrowingBuffers
from .options import Options

logger = logging.getLogger("sglang.stillmap")

# Methods of the allocator that are replaced on the object.
HOOKS = ("available_size", "alloc", "alloc_extend", "alloc_decode", "clear",
         "evict_to_free_tokens", "check_decode_capacity", "create_prefill_budget", "verify_byte_accounting")


class GrowingSlots:
    """Connects one allocator of SGLang with the memory of its pool.

    The allocator's free list has the free pages of slots up to `limit`, the last one that has memory. What is beyond
    counts as available, and is appended to the list when an allocation needs it and the device has memory.
    Threads: that of the scheduler.
    """

    def __init__(self, allocator: Any, buffers: GrowingBuffers, options: Options) -> None:
        self._allocator, self._buffers = allocator, buffers
        self._cached = allocator.size // 8 if options.cached_tokens is None else options.cached_tokens
        self._size = allocator.page_size
        self._free_at_last_shrink = 0
        self._tree: Any = lambda: None
        self.limit = self._with_memory()
        for name in HOOKS:
            if hasattr(type(allocator), name):
                setattr(allocator, name, getattr(self, name))
        self.clear()

    # ---- in place of the allocator's ----

    def available_size(self) -> int:
        """All that is free, with memory or without: SGLang compares the sum of all kinds of slots with their number."""
        return self.free + (self._total() - self.limit) * self._size

    def alloc(self, need_size: int) -> torch.Tensor | None:
        self._grow(need_size)
        return self._own("alloc", need_size)

    def alloc_extend(self, prefix_lens: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor | None:
        extended = named["extend_num_tokens"] if "extend_num_tokens" in named else arguments[4]
        self._grow(extended + (len(prefix_lens) + 1) * self._size)
        return self._own("alloc_extend", prefix_lens, *arguments, **named)

    def alloc_decode(self, seq_lens: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor | None:
        self._grow(len(seq_lens) * self._size)
        return self._own("alloc_decode", seq_lens, *arguments, **named)

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> None:
        """The device's memory first, then cached prefixes."""
        if self._grow(num_tokens) or tree_cache is None or not tree_cache.supports_prefix_sharing():
            return
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        tree_cache.evict_for_alloc(EvictParams(num_tokens=num_tokens - self.free))

    def check_decode_capacity(self, *, num_tokens: int, tree_cache: Any, **_: Any) -> bool:
        self._follow(tree_cache, num_tokens)
        self.evict_to_free_tokens(tree_cache, num_tokens)
        return self.free >= num_tokens

    def create_prefill_budget(self, tree_cache: Any, **named: Any) -> Any:
        self._follow(tree_cache, 0)
        budget = self._own("create_prefill_budget", tree_cache, **named)
        budget.allocator = _Admission(self._allocator, self)
        return budget

    def verify_byte_accounting(self) -> list[str]:
        """SGLang calls it when it is idle: what the radix cache keeps gets the lowest slots."""
        tree_cache = self._tree()
        if tree_cache is not None:
            self._evict(tree_cache, self._cached)
            self.pack(tree_cache)
        self._try_shrink()
        return self._own("verify_byte_accounting")

    def clear(self) -> None:
        self._own("clear")
        self._allocator.free_pages = self._pages(1, self.limit)
        self._try_shrink()

    # ---- figures ----

    @property
    def free(self) -> int:
        """Free slots that have memory."""
        return self._own("available_size")

    @property
    def admissible(self) -> int:
        """Free slots that have memory, or that the device has memory for now."""
        device_free = torch.cuda.mem_get_info(self._buffers.device_id)[0]
        groups = device_free // self._buffers.group_bytes
        return self.free + min((self._total() - self.limit) * self._size, groups * self._buffers.group_tokens)

    # ---- memory ----

    def shrink(self, tree_cache: Any = None, cached_tokens: int = 0) -> int:
        """Gives the memory beyond the highest slot in use back, in whole pages; returns the bytes.

        With a radix cache, evicts what no request uses down to `cached_tokens` first. Waits for the device's work. If it
        raises, the slots that still have memory are free as before. Cost: a sort of the free list, one copy of a number
        from the device, and one unmap for each buffer.
        """
        if tree_cache is not None:
            self._evict(tree_cache, cached_tokens)
        allocator = self._allocator
        self._own("merge_and_sort_free")
        free, _ = torch.sort(allocator.free_pages)
        # The list ends in as many successive pages as there are free ones at the end of the memory.
        expected = self._pages(self.limit - len(free) + 1, self.limit)
        highest = self.limit - int((free == expected).sum().item())
        allocator.free_pages = free[:len(free) - (self.limit - highest)]
        self.limit = highest
        try:
            return self._buffers.release_beyond((highest + 1) * self._size)
        finally:
            self._offer()
            self._free_at_last_shrink = self.free

    def pack(self, tree_cache: Any) -> int:
        """Moves what a radix cache keeps to the lowest slots, where no request has any; returns how many were moved.

        Does nothing for other kinds of caches, and while a slot in use is not in the tree. SGLang's move_kv_cache copies,
        on the current stream; waits for it. If it raises, nothing has moved.
        """
        from sglang.srt.mem_cache.radix_cache import RadixCache

        allocator, size = self._allocator, self._size
        kept = self.limit * size - self.free
        if type(tree_cache) is not RadixCache or tree_cache.protected_size() or tree_cache.evictable_size() != kept or not kept:
            return 0
        nodes = list(tree_cache.root_node.children.values())
        for node in nodes:
            nodes.extend(node.children.values())
        used = torch.zeros(self.limit + 1, dtype=torch.bool, device=allocator.device)
        used[torch.cat([node.value for node in nodes]) // size] = True
        last = kept // size
        holes = self._pages(1, last)[~used[1:last + 1]]
        sources = self._pages(last + 1, self.limit)[used[last + 1:]]
        if not len(sources):
            return 0
        within = torch.arange(size, dtype=torch.int64, device=allocator.device)
        targets, origins = ((pages[:, None] * size + within).reshape(-1) for pages in (holes, sources))
        allocator.get_kvcache().move_kv_cache(targets, origins)
        torch.cuda.synchronize(self._buffers.device_id)
        now = torch.arange(self.limit + 1, dtype=torch.int64, device=allocator.device)
        now[sources] = holes
        for node in nodes:
            node.value = now[node.value // size] * size + node.value % size
        self._own("merge_and_sort_free")
        allocator.free_pages = self._pages(last + 1, self.limit)
        return len(targets)

    def _grow(self, tokens: int) -> bool:
        """There are as many free slots with memory. False: the device has no memory for them."""
        missing = -(-(tokens - self.free) // self._size)
        if missing <= 0:
            return True
        if self.limit + missing > self._total():
            missing = self._total() - self.limit
        if missing:
            try:
                self._buffers.ensure_prefix((self.limit + missing + 1) * self._size)
            except stillmap.OutOfMemoryError:
                return False
            self._own("merge_and_sort_free")
            self._offer()
        return self.free >= tokens

    def _offer(self) -> None:
        """Slots that have memory now are free."""
        limit = self._with_memory()
        if limit > self.limit:
            pages = self._pages(self.limit + 1, limit)
            self._allocator.free_pages = torch.cat((self._allocator.free_pages, pages))
            self.limit = limit

    def _follow(self, tree_cache: Any, soon: int) -> None:
        """Between two steps. Shrinks when an eighth of the slots has become free since it was tried last."""
        if tree_cache is not None and self._tree() is not tree_cache:
            self._tree = weakref.ref(tree_cache)
        if tree_cache is not None and tree_cache.evictable_size() > self._cached * 9 // 8:
            self._evict(tree_cache, self._cached)
        free = self.free - soon
        self._free_at_last_shrink = min(self._free_at_last_shrink, free)
        if free - self._free_at_last_shrink >= max(self._buffers.group_tokens, self.limit * self._size // 8):
            self._try_shrink()

    def _try_shrink(self) -> None:
        try:
            self.shrink()
        except stillmap.Error as error:
            logger.warning("stillmap: the KV cache keeps its memory: %s", error)

    def _evict(self, tree_cache: Any, cached_tokens: int) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        too_many = tree_cache.evictable_size() - cached_tokens
        if too_many > 0:
            tree_cache.evict(EvictParams(num_tokens=too_many))

    # ---- inside ----

    def _own(self, name: str, *arguments: Any, **named: Any) -> Any:
        return getattr(type(self._allocator), name)(self._allocator, *arguments, **named)

    def _total(self) -> int:
        return int(self._allocator.size) // self._size

    def _with_memory(self) -> int:
        """The last page of slots that has memory; page 0 is SGLang's padded one."""
        return min(self._total(), self._buffers.usable_tokens // self._size - 1)

    def _pages(self, first: int, last: int) -> torch.Tensor:
        return torch.arange(first, last + 1, dtype=torch.int64, device=self._allocator.device)


class _Admission:
    """The allocator as the budget of a prefill sees it: what the device has no memory for is not available."""

    def __init__(self, allocator: Any, slots: GrowingSlots) -> None:
        self._allocator, self._slots = allocator, slots

    def available_size(self) -> int:
        return self._slots.admissible

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)
