"""The allocator of vLLM's sleep mode: a memory pool of PyTorch for each tag, on memory of Stillmap.

It has the interface of vLLM's MemAllocator (vllm/device_allocator/__init__.py, 0.33.0).
"""

from __future__ import annotations

import atexit
import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.device_allocator import DEFERRABLE_TAGS, AllocationData
from vllm.device_allocator.alloc_conf import (
    EXPANDABLE_SEGMENTS,
    conf_flag_enabled,
    current_alloc_conf,
    set_alloc_conf,
    with_conf_flag,
)

import stillmap
import stillmap.torch

from . import callbacks, selection
from .callbacks import Range
from .options import Options

logger = logging.getLogger("vllm.stillmap")

_GiB = 1 << 30
_GRAPHS = "cudagraph"


class StillmapAllocator:
    """Allocations inside of `use_memory_pool(tag)` belong to the tag. Addresses stay while a tag sleeps.

    One for each process, on the device that is current at the first use. Threads: safe; during sleep, discard and
    wake_up no other thread may use the memory of the tags.
    """

    default_tag = "default"
    _instance: StillmapAllocator | None = None
    _making = threading.Lock()

    @classmethod
    def get_instance(cls) -> StillmapAllocator:
        with cls._making:
            if cls._instance is None:
                cls._instance = cls(selection.selected() or Options())
                # Pools have to end before PyTorch's allocator does.
                atexit.register(cls._instance.release_pools)
            return cls._instance

    def __init__(self, options: Options) -> None:
        self.options = options
        self.device = torch.cuda.current_device()
        self._pools: dict[str, Any] = {}
        self._asleep: dict[str, str] = {}  # tag -> store
        self._lock = threading.RLock()
        self._of_thread = threading.local()

    # ---- allocation ----

    @property
    def current_tag(self) -> str:
        """The tag that this thread allocates for."""
        tags = self._tags_of_thread()
        return tags[-1] if tags else self.default_tag

    def _tags_of_thread(self) -> list[str]:
        """Of the calls of use_memory_pool that this thread is in; the innermost is the last."""
        return self._of_thread.__dict__.setdefault("tags", [])

    @contextmanager
    def _allocating_for(self, tag: str) -> Iterator[None]:
        self._tags_of_thread().append(tag)
        try:
            yield
        finally:
            self._tags_of_thread().pop()

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Allocations of this thread go to the tag's pool. Nested calls are possible.

        What was allocated for the tag and freed is the device's again when the outermost call begins and ends: a
        model that is quantized while it loads holds its higher precision only until then.
        """
        tag = self.default_tag if tag is None else tag
        outermost = tag not in self._tags_of_thread()
        pool = self._pool(tag)
        # PyTorch does not serve such a pool where expandable segments are on (pytorch issue 147851).
        conf = current_alloc_conf()
        expandable = conf_flag_enabled(conf, EXPANDABLE_SEGMENTS)
        if expandable:
            set_alloc_conf(with_conf_flag(conf, EXPANDABLE_SEGMENTS, False))
        try:
            if outermost:
                pool.empty_cache()
            with self._allocating_for(tag), pool.use():
                yield
            if outermost:
                pool.empty_cache()
        finally:
            if expandable:
                set_alloc_conf(conf)

    @contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """The number of the pool that CUDA graphs are captured into when they are to sleep too: a tag of its own."""
        with self._allocating_for(_GRAPHS):  # the capture itself sends allocations to the pool
            yield self._pool(_GRAPHS).mem_pool.id

    def get_current_usage(self) -> int:
        """Bytes of all tags, asleep or not."""
        return sum(r.nbytes for r in self._ranges(list(self._pools)))

    # ---- sleeping ----

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Suspends all tags; keeps the contents of `offload_tags` (None: the default tag), discards others.

        Failure: no tag was suspended, and no contents that were to be kept are lost.
        """
        keep = _tags(self.default_tag if offload_tags is None else offload_tags)
        with self._lock:
            self._empty_caches()
            for tag, store in self._asleep.items():
                if (store != "discard") != (tag in keep):
                    logger.warning("stillmap: tag %r sleeps already; its contents stay %s", tag,
                                   "discarded" if store == "discard" else "kept")
            # What is kept comes first: a failure then loses nothing.
            awake = [tag for tag in self._pools if tag not in self._asleep]
            awake.sort(key=lambda tag: tag not in keep)
            self._suspend({tag: self.options.store if tag in keep else "discard" for tag in awake})
        gc.collect()
        torch.accelerator.empty_cache()

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Suspends these tags without their contents."""
        with self._lock:
            for tag in _tags(tags):
                if self._asleep.get(tag, "discard") != "discard":
                    logger.warning("stillmap: tag %r sleeps already; its contents stay kept", tag)
            self._suspend({tag: "discard" for tag in _tags(tags)
                           if tag in self._pools and tag not in self._asleep})

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Resumes tags: with `tags`, of the deferrable ones (weights, kv_cache) only these.

        Failure: tags that were resumed stay so, the others sleep with their contents; call it again.
        """
        gc.collect()
        torch.accelerator.empty_cache()
        with self._lock:
            wanted = [tag for tag in self._asleep
                      if tags is None or tag in tags or tag not in DEFERRABLE_TAGS]
            resumed = []
            try:
                for tag in wanted:
                    stillmap.resume(_name(tag), device=self.device)
                    del self._asleep[tag]
                    resumed.append(tag)
            finally:
                callbacks.resumed(self._ranges(resumed))
        logger.info("stillmap: resumed %s", ", ".join(resumed) or "nothing")

    def _suspend(self, stores: dict[str, str]) -> None:
        ranges = self._ranges(list(stores))
        with_memory = {r.tag for r in ranges}  # PyTorch has asked for none of the others' yet
        tags = [tag for tag in stores if tag in with_memory]
        torch.cuda.synchronize(self.device)
        kept = discarded = 0
        done: list[str] = []
        try:
            callbacks.suspending(ranges)
            for tag in tags:
                store = stores[tag]
                suspended = stillmap.suspend(_name(tag), device=self.device, store=store,
                                             directory=self.options.directory if store == "file" else None)
                done.append(tag)
                if store == "discard":
                    discarded += suspended["nbytes"]
                else:
                    kept += suspended["nbytes"]
        except BaseException:
            for tag in reversed(done):
                stillmap.resume(_name(tag), device=self.device)
            callbacks.resumed(ranges)
            raise
        self._asleep.update({tag: stores[tag] for tag in tags})
        logger.info("stillmap: suspended %.2f GiB: %.2f GiB kept (%s), %.2f GiB discarded", (kept + discarded) / _GiB,
                    kept / _GiB, self.options.store, discarded / _GiB)

    # ---- pools ----

    def _empty_caches(self) -> None:
        """So that free segments are neither kept nor copied."""
        gc.collect()
        for tag, pool in self._pools.items():
            if tag not in self._asleep and tag != _GRAPHS:  # later graphs are captured into the same one
                pool.empty_cache()

    def _pool(self, tag: str) -> Any:
        with self._lock:
            pool = self._pools.get(tag)
            if pool is None:
                pool = self._pools[tag] = stillmap.torch.pool(tag=_name(tag), device=self.device)
            return pool

    def _segments(self, tag: str) -> list[dict[str, Any]]:
        pool = self._pools.get(tag)
        return [] if pool is None else pool.segments()

    def _ranges(self, tags: list[str]) -> list[Range]:
        return [Range(tag, s["address"], s["total_size"]) for tag in tags for s in self._segments(tag)]

    @property
    def pointer_to_data(self) -> dict[int, AllocationData]:
        """What vLLM's own allocator keeps of each allocation, by address; made when it is read."""
        return {r.address: AllocationData((self.device, r.nbytes, r.address, 0), r.tag, None, r.tag in self._asleep)
                for r in self._ranges(list(self._pools))}

    def release_pools(self) -> None:
        """Gives up the pools; tensors in them stay valid. vLLM calls it when a worker ends."""
        with self._lock:
            self._pools.clear()

    close = release_pools


def _name(tag: str) -> str:
    return "vllm." + tag


def _tags(tags: tuple[str, ...] | list[str] | str) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)
