"""The memory of one engine's KV cache."""

from __future__ import annotations

import logging
from typing import Any

import torch

import stillmap

from .placement import Placement

logger = logging.getLogger("vllm.stillmap")


class _Pointer:
    """What torch.as_tensor() reads. The tensor keeps it, and it keeps the arena."""

    def __init__(self, arena: Any, address: int, nbytes: int) -> None:
        self.arena = arena
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|i1", "data": (address, False), "version": 3}


class CacheMemory:
    """An arena with the addresses of all blocks, and a tensor of them. Block 0, vLLM's null block, always has memory:
    padded rows of a batch and captured graphs touch it, and nothing else that no request has.

    Blocks begin as zeros when they get memory, as vLLM's do when it starts.
    Streams: all is ordered after and before the work of the current stream, which has to be the one that runs the model.
    Threads: that of the engine.
    """

    def __init__(self, placement: Placement, spare_blocks: int, device: torch.device) -> None:
        self.placement = placement
        self.device = device
        self.is_exhausted = False  # the device had no memory in this step
        self.waits = 0             # calls of grow() that had to wait for memory
        self.arena = stillmap.KVArena(
            blocks=placement.blocks, layers=placement.regions, tensors=1, tokens_per_block=1, heads=1,
            dim=placement.block_bytes, dtype="int8", layers_per_range=1, spare_blocks=spare_blocks,
            tag="vllm.kv_cache", device=device.index)
        self._had_memory: list[tuple[int, int]] = []  # as prepare() left it, where it has changed something
        self.buffer: torch.Tensor | None = None
        if not self.grow(1) or self.arena.allocate(1) != [0]:
            raise stillmap.OutOfMemoryError("stillmap.vllm: kv_cache: the device has no memory for one block")
        self.region_bytes = self.arena.reserved // placement.regions
        self.buffer = torch.as_tensor(_Pointer(self.arena, self.arena.address, self.arena.reserved), device=device)
        self._had_memory = []
        self._clear_new()

    # ---- figures ----

    @property
    def free(self) -> int:
        """Blocks that have memory and no contents."""
        return self.arena.free_blocks

    @property
    def cached(self) -> int:
        return self.arena.stats()["cached"]

    @property
    def used(self) -> int:
        """Without the null block."""
        return self.arena.stats()["used"] - 1

    @property
    def held_bytes(self) -> int:
        return self.arena.stats()["mapped_bytes"]

    # ---- steps ----

    def begin_step(self) -> None:
        """What was prepared is there. No driver call, where nothing was, and one memset for each run of new blocks."""
        self.is_exhausted = False
        self._finish()

    def prepare(self, blocks: int) -> None:
        """The next step needs about so many more. Memory of free blocks beyond these and the spare ones is given back when
        the current stream has done what is queued on it.

        Requires: every step that was scheduled with a block that is free now has been queued.
        """
        self.arena.prepare(blocks, torch.cuda.current_stream(self.device))
        if not self.arena.settled:
            self._had_memory = self.arena.committed_ranges()

    def grow(self, blocks: int) -> bool:
        """Whether so many free blocks have memory; waits for it, if they do not."""
        if self.free >= blocks:
            return True
        if self.is_exhausted:
            return False
        self.waits += 1
        self.prepare(blocks)
        self._finish()
        return self.free >= blocks

    def missing_for(self, blocks: int) -> int:
        """Bytes of device memory that grow() would not get."""
        return self.arena.missing_for(blocks)

    def _finish(self) -> None:
        is_settled = self.arena.settled
        short = self.arena.begin_step()
        if short:  # what there was is mapped; the scheduler goes on with it
            self.is_exhausted = True
            logger.debug("stillmap: the device has %d MiB too little for the KV cache", -(-short >> 20))
        if self.buffer is not None and not is_settled:
            self._clear_new()

    def _clear_new(self) -> None:
        assert self.buffer is not None
        for first, count in _without(self.arena.committed_ranges(), self._had_memory):
            for region in range(self.placement.regions):
                at = region * self.region_bytes + first * self.placement.block_bytes
                self.buffer[at:at + count * self.placement.block_bytes].zero_()


def _without(ranges: list[tuple[int, int]], taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of `ranges` is not in `taken`; both are (first, count), in order."""
    left = []
    taken = [*taken, (1 << 62, 0)]
    i = 0
    for first, count in ranges:
        end = first + count
        while first < end:
            while taken[i][0] + taken[i][1] <= first:
                i += 1
            until = min(end, taken[i][0])
            if until > first:
                left.append((first, until - first))
            first = min(end, max(until, taken[i][0] + taken[i][1]))
    return left
