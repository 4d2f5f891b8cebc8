"""Memory of a tag beside PyTorch's native allocator, as torch.cuda.MemPool."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import stillmap
from stillmap import _native

from . import _control, _mempools, _multiprocessing, _served, _state, _use
from ._plugin import allocator_of, device_index, route_copies

_lock = threading.Lock()
_allocators: dict[str, tuple[Any, dict[str, Any]]] = {}


class Pool:
    """A memory pool of PyTorch whose segments are Stillmap's memory with a tag.

    PyTorch's native allocator stays in charge: statistics, snapshots, CUDA graphs, `torch.compile`, its retry and
    its `torch.OutOfMemoryError` work. Tensors may outlive the pool. Pools of one tag share their heap.
    Threads: safe. `use()` is for the thread that calls it, as PyTorch's use_mem_pool is, unless it is asked for all
    threads. Threads may be inside at once, and calls may be nested: the innermost serves.
    """

    def __init__(self, tag: str, device: int, allocator: Any) -> None:
        self.tag = tag
        self.device = device
        self.mem_pool = _mempools.make(device, allocator)  # for a graph: torch.cuda.graph(g, pool=pool.mem_pool.id)
        self._allocator = allocator
        self._idle = [self.mem_pool]
        self._lock = threading.Lock()
        self.mem_pools = [self.mem_pool]  # all of them: PyTorch lets but one thread allocate to each
        self._ended: list[tuple[int, int]] = []  # numbers of earlier ones, in which there are tensors

    @contextmanager
    def use(self, *, all_threads: bool = False) -> Iterator[Pool]:
        """What this thread allocates on the device inside belongs to the tag.

        A tensor of 10 MiB or more has a segment of its own, which ends with it: its memory serves the next requests
        of the tag, and is the device's when the context ends. Smaller ones share segments, by PyTorch's rules.

        all_threads: what any thread allocates on it meanwhile. A training loop needs it: PyTorch runs backward passes
        in threads of its own, and without it what they allocate is outside of the pool.

        Raises BusyError while the tag is suspended: the pool's free memory has no pages. Raises NotSupportedError at
        the end if PyTorch allocated something else than the tag's memory inside; warns (RuntimeWarning) if all that
        was allocated inside is on another device.
        """
        if any(s["tag"] == self.tag for s in stillmap.suspended(self.device)):
            raise stillmap.BusyError(f"stillmap.torch.Pool.use: tag {self.tag!r} is suspended; resume it first")
        with self._lock:
            if not self._idle:
                self._idle.append(_mempools.make(self.device, self._allocator))
                self.mem_pools.append(self._idle[-1])
            mine = self._idle.pop(0)
        try:
            route = _for_all_threads if all_threads else torch.cuda.use_mem_pool
            with _mempools.exact(mine, self, all_threads), _mempools.allocating(), route(mine, self.device):
                with _served.checked(self.tag, self.device):
                    yield self
        finally:
            with self._lock:
                self._idle.insert(0, mine)

    def segments(self) -> list[dict[str, Any]]:
        """PyTorch's segments of the pool, as torch.cuda.memory_snapshot() has them. A tensor of 10 MiB or more that
        was allocated inside of use() has one of its own size."""
        with self._lock:
            base = {tuple(number): {tuple(number), *_native._torch_exact_pools(number)}
                    for number in self._ended + [pool.id for pool in self.mem_pools]}
            numbers = set().union(*base.values())
            found = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) in numbers]
            present = {tuple(s["segment_pool_id"]) for s in found}
            self._ended = [number for number in self._ended if base[tuple(number)] & present]
        for segment in found:
            # PyTorch believes that it is some bytes longer, which it never uses.
            segment["total_size"] = _native._torch_exact_bytes(segment["address"]) or segment["total_size"]
        return found

    def empty_cache(self) -> None:
        """Gives segments without a tensor back to the device.

        torch.cuda.empty_cache() alone does so only for pools that have ended (pytorch issue 145168). So this pool goes
        on with a new torch.cuda.MemPool, except where it is in use: capture later graphs with the new `mem_pool`.
        Cost: that of torch.cuda.empty_cache() if there is such a segment, else a snapshot of the pool.
        """
        _native._torch_release_exact(self.tag, self.device)
        if all(segment["allocated_size"] for segment in self.segments()):
            return
        with self._lock:
            in_use = [pool for pool in self.mem_pools if pool not in self._idle]
            idle = self._idle
            self._ended += [pool.id for pool in idle]
            self.mem_pool = _mempools.make(self.device, self._allocator)
            self._idle = [self.mem_pool]
            self.mem_pools = [*in_use, self.mem_pool]
            _mempools.end(idle)
        torch.cuda.empty_cache()

    def __del__(self) -> None:
        if _mempools is not None and "mem_pools" in self.__dict__:  # None: the interpreter ends
            _mempools.end(self.mem_pools)

    def suspend(self, **options: Any) -> dict[str, Any]:
        """stillmap.torch.suspend(tag): saves the contents, and gives the memory back to the device."""
        return _state.suspend(self.tag, device=self.device, **options)

    def resume(self) -> dict[str, Any]:
        """Brings the contents back at the same addresses."""
        return _state.resume(self.tag, device=self.device)

    def stats(self) -> dict[str, Any]:
        return _use.stats(self.tag, self.device)

    def memory_map(self) -> Any:
        return _use.memory_map(self.tag, self.device)

    def __repr__(self) -> str:
        return f"stillmap.torch.Pool(tag={self.tag!r}, device={self.device})"


@contextmanager
def _for_all_threads(mem_pool: Any, device: int) -> Iterator[None]:
    """torch.cuda.use_mem_pool for all threads. PyTorch's own CUDA graphs allocate so."""
    torch._C._cuda_beginAllocateToPool(device, mem_pool.id)
    try:
        capturing = getattr(torch.cuda.CUDAGraph, "get_currently_capturing_graph", None)
        if capturing is not None and torch.cuda.is_current_stream_capturing():
            capturing()._retain_pool(mem_pool)
        yield
    finally:
        torch._C._cuda_endAllocateToPool(device, mem_pool.id)
        torch._C._cuda_releasePool(device, mem_pool.id)


def pool(tag: str, *, device: Any = None, limit: int | None = None, peers: bool | None = None,
         share: str | None = None, share_limit: int | None = None, exportable: bool | None = None) -> Pool:
    """A pool of a tag on a device (None: the current one). Nothing is allocated yet.

    limit: bytes of the tag on each device. peers: whether the devices that can access the memory may (None: yes). share,
    share_limit: a quota that other processes take part in, too, as in use(); the pools of this process are one
    participant. exportable: other processes can map the memory, as in use(). The options count for the first pool of a
    tag. STILLMAP_TORCH_LIMIT, _PEERS and _EXPORTABLE, STILLMAP_SHARE and STILLMAP_CONTROL apply as in use(). A tag on which nothing was
    allocated cannot be suspended.

    Before 2.14 PyTorch does not serve such pools where `expandable_segments` is on (pytorch issue 147851).

    Raises InvalidArgumentError (an empty tag, too many tags), BusyError (the tag has a pool with other options),
    NotSupportedError (use() was called: PyTorch has no pools on a pluggable allocator; PyTorch does not cache).
    """
    if _use.in_use():
        raise stillmap.NotSupportedError(
            "stillmap.torch.pool: stillmap.torch.use() was called, and PyTorch has no MemPool on a pluggable "
            "allocator; its memory has a tag of its own")
    index = device_index(device)
    options = {"limit": limit, "peers": peers, "share": share, "share_limit": share_limit,
               "exportable": exportable}
    with _lock:
        known = _allocators.get(tag)
        if known is None:
            _control.start(None)
            _served.install()
            _multiprocessing.install()
            known = _allocators[tag] = (
                allocator_of(*_native._torch_pool(tag, limit, peers, share, share_limit, exportable)), options)
            route_copies(peers)
        elif known[1] != options:
            raise stillmap.BusyError(f"stillmap.torch.pool: tag {tag!r} has a pool with other options: {known[1]}")
    return Pool(tag, index, known[0])
