"""The free blocks of vLLM's block pool, kept by an arena."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .memory import CacheMemory


class FreeBlocks:
    """In place of vLLM's FreeKVCacheBlockQueue, with the part of its interface that the block pool uses.

    vLLM's queue has one list of blocks without references, in the order in which they are to be used again. Here the
    arena chooses: blocks without contents first, those of one request together; then memory that the device has; then
    cached blocks, whole page groups at a time, those first that were used longest ago. The pool forgets their hashes.

    A block has one reference in the arena while it has any in vLLM.
    """

    def __init__(self, pool: Any, memory: CacheMemory, most_cached: int, evicted_at_once: int) -> None:
        self._pool, self._memory, self._most_cached = pool, memory, most_cached
        self._evicted_at_once = evicted_at_once
        self._is_short = False
        self.continued: int | None = None  # the block that the next ones come after

    # ---- what the block pool calls ----

    @property
    def num_free_blocks(self) -> int:
        """Blocks without references; where memory is short, those of them that have some."""
        if self._is_short:
            return self._memory.free + self._memory.cached
        return self._pool.num_gpu_blocks - 1 - self._memory.used

    def popleft_n(self, n: int) -> list[Any]:
        if n == 0:
            return []
        memory = self._memory
        if memory.free < n and not memory.grow(n):
            self._evict(n - memory.free)
        return [self._pool.blocks[i] for i in memory.arena.allocate(n, self.continued)]

    def remove(self, block: Any) -> None:
        """A cached block is used again."""
        self._memory.arena.retain([block.block_id])

    def prepend_n(self, blocks: Sequence[Any]) -> None:
        """Blocks without a hash have lost their last reference."""
        self._release(blocks, False)

    def append_n(self, blocks: Sequence[Any]) -> None:
        """Those with a hash."""
        self._release(blocks, True)

    # ---- what the scheduler and the hooks call ----

    def want(self, n: int, hits: int, may_come_later: bool) -> None:
        """vLLM is about to compare `n` with num_free_blocks; `hits` of these are cached blocks that it will use.

        So memory that is missing is waited for here, and what the device does not have is no free block: the scheduler
        then preempts, or lets the request wait. `may_come_later`: the memory is only asked for, not taken.
        """
        memory = self._memory
        need, cached = n - hits, memory.cached - hits
        if memory.free >= need:
            self._is_short = False
        elif may_come_later:
            unused = self._pool.num_gpu_blocks - 1 - memory.used - memory.cached
            self._is_short = need <= cached + unused and memory.missing_for(max(0, need - cached)) > 0
        else:
            memory.grow(min(need, self._pool.num_gpu_blocks - 1 - memory.used - memory.cached))
            self._is_short = memory.free + cached < need

    def begin_step(self) -> None:
        self._memory.begin_step()
        self._is_short = False

    def prepare(self, expected: int) -> None:
        """Everything that was scheduled before the step that is scheduled now has been queued."""
        too_many = self._memory.cached - self._most_cached
        if too_many > 0:
            self._evict(too_many)
        self._memory.prepare(expected)

    def cached_among(self, block_ids: Iterable[int]) -> list[int]:
        """Those that have a hash and no reference."""
        blocks = self._pool.blocks
        return [i for i in block_ids if blocks[i].ref_cnt == 0 and blocks[i].block_hash is not None]

    def drop(self, block_ids: Sequence[int]) -> None:
        """Of cached blocks whose hashes the pool has forgotten."""
        self._memory.arena.drop(block_ids)

    def drop_all(self) -> None:
        self._memory.arena.evict(self._memory.cached)

    # ---- inside ----

    def _release(self, blocks: Sequence[Any], keep: bool) -> None:
        for block in blocks:
            # One after the other: the arena evicts first what was released first, and vLLM frees the end of a prompt first.
            self._memory.arena.release([block.block_id], keep=keep)
        if blocks and self._memory.used == 0:
            # The engine may rest now, and then there is no step that gives memory back. All steps have been queued:
            # vLLM schedules and queues a step before it frees what the one before has done.
            self.prepare(0)

    def _evict(self, n: int) -> None:
        for i in self._memory.arena.evict(max(n, self._evicted_at_once)):
            self._pool._maybe_evict_cached_block(self._pool.blocks[i])
