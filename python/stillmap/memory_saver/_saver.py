"""The interface: what is given to PyTorch's pools, and when."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

import stillmap
import stillmap.torch as st
from stillmap.torch import _mempools

from ._group import Group

_DEFAULT_TAG = "default"
_HOOK_MODES = ("preload", "torch")
_HOST_BACKENDS = ("pinned", "mmap")
_TRUE, _FALSE = ("1", "true", "TRUE", "yes", "YES"), ("0", "false", "FALSE", "no", "NO", "")


def _variable(name: str) -> bool:
    """A switch of the environment, with the values that torch_memory_saver takes."""
    value = os.environ.get(name, "")
    if value not in _TRUE + _FALSE:
        raise stillmap.InvalidArgumentError(f"stillmap.memory_saver: {name} is {value!r}; it must be 1 or 0")
    return value in _TRUE


@contextmanager
def configure_subprocess() -> Iterator[None]:
    """Does nothing: no library has to be preloaded into a child."""
    yield


class TorchMemorySaver:
    """Memory of PyTorch that is released by pause(tag) and comes back at its addresses by resume(tag).

    Threads: safe, but pause and resume are for a moment at which no thread uses the memory of the tag. A region is
    for the thread that is inside. Objects of this class in one process share their memory by tag.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._groups: dict[tuple[Any, ...], Group] = {}
        self._graph_pools: dict[tuple[Any, ...], st.Pool] = {}
        self._inside = threading.local()
        self._hook_mode = "torch"
        self._retain = _variable("TMS_RETAIN_CPU_BACKUP")
        self._backend = os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND") or _HOST_BACKENDS[0]
        if self._backend not in _HOST_BACKENDS:
            raise stillmap.InvalidArgumentError(
                f"stillmap.memory_saver: TMS_INIT_CPU_BACKUP_BACKEND is {self._backend!r}; it must be one of "
                f"{_HOST_BACKENDS}")
        self._process: ExitStack | None = None  # in the pool of all that the process allocates, if it has one
        self._process_device = 0
        self._directory: str | None = os.environ.get("TMS_DISK_BACKUP_DIR")

    def _take_process(self) -> None:
        """With TMS_INIT_ENABLE=1, what the process allocates on the current device belongs to the tag "default", on
        all threads, from the moment at which PyTorch initialises CUDA. TMS_INIT_ENABLE_CPU_BACKUP and
        TMS_INIT_ENABLE_DISK_BACKUP are its backup."""
        if _variable("TMS_INIT_ENABLE"):
            torch.cuda._lazy_call(self._begin_process)

    def _begin_process(self) -> None:
        if not _mempools.innermost_serves():
            raise stillmap.NotSupportedError(
                f"memory_saver: TMS_INIT_ENABLE: in PyTorch {torch.__version__} the outermost of nested pools serves, "
                "so there could be no region() inside; later versions can, and stillmap.torch.use() with suspend()")
        with self._lock:
            self._enter_process(torch.cuda.current_device())

    def _enter_process(self, device: int) -> None:
        cpu, disk = _variable("TMS_INIT_ENABLE_CPU_BACKUP"), _variable("TMS_INIT_ENABLE_DISK_BACKUP")
        inside = ExitStack()
        with torch.cuda.device(device):
            group = self._group(_DEFAULT_TAG, cpu, disk, None)
        inside.enter_context(group.pool.use(all_threads=True))
        self._process, self._process_device = inside, device

    @contextmanager
    def _moment(self) -> Iterator[None]:
        """Around pause and resume. What the process allocates after it belongs to memory that is not paused."""
        with self._lock:
            if self._process is None:
                yield
                return
            self._process.close()
            try:
                yield
            finally:
                self._enter_process(self._process_device)

    @contextmanager
    def region(self, tag: str = _DEFAULT_TAG, enable_cpu_backup: bool = False, enable_disk_backup: bool = False,
               cpu_backup_backend: str | None = None) -> Iterator[None]:
        """What this thread allocates on the current device inside belongs to the tag. Regions may be nested: the
        inner one counts. Without a backup the contents are lost by a pause."""
        group = self._group(tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        with self._entered(group.device), group.pool.use():
            yield

    @contextmanager
    def cuda_graph(self, cuda_graph: torch.cuda.CUDAGraph, pool: Any = None, stream: torch.cuda.Stream | None = None,
                   capture_error_mode: str = "global", tag: str = _DEFAULT_TAG, enable_cpu_backup: bool = False,
                   cpu_backup_backend: str | None = None) -> Iterator[None]:
        """torch.cuda.graph() with memory that belongs to the tag, in both hook modes.

        pool: graphs with the same one share memory, as in torch.cuda.graph(). It stands for a pool of the tag:
        memory that was allocated to it by others is not used.
        """
        group = self._group(tag, enable_cpu_backup, False, cpu_backup_backend)
        ours = self._graph_pool(group, pool)
        with torch.cuda.graph(cuda_graph, pool=ours.mem_pool.id, stream=stream, capture_error_mode=capture_error_mode):
            with self._entered(group.device):
                yield

    @contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """What this thread allocates inside is PyTorch's own memory, although a region is around it. The memory
        goes back to the device at the end, or with its last tensor and torch.cuda.empty_cache()."""
        if not dispose_mem_pool_after_use:
            raise stillmap.NotSupportedError("memory_saver.disable: dispose_mem_pool_after_use=False is not supported")
        device = self._region_device()
        if device is None:
            raise stillmap.InvalidArgumentError("memory_saver.disable: this thread is in no region()")
        if not _mempools.innermost_serves():
            raise stillmap.NotSupportedError(
                f"memory_saver.disable: in PyTorch {torch.__version__} the outermost of nested pools serves, which is "
                "the region's; later versions can")
        pool = _mempools.make(device)
        try:
            with self._entered(None), _mempools.allocating(), torch.cuda.use_mem_pool(pool, device):
                yield
        finally:
            _mempools.end([pool])
            del pool

    def pause(self, tag: str | None = None) -> None:
        """Gives the memory of the tag (None: of all) back to the device. Waits for the device. What is paused
        already stays so. Failure: raises, and all that this call paused is back."""
        with self._moment():
            done: list[Group] = []
            try:
                for group in self._of(tag):
                    if group.pause(self._directory):
                        done.append(group)
            except BaseException:
                for group in reversed(done):
                    group.resume(self._retain)
                raise

    def resume(self, tag: str | None = None) -> None:
        """Brings the memory of the tag (None: of all) back at its addresses. What is not paused is left alone.
        Failure: raises OutOfMemoryError; what had no room stays paused, and another call tries it again."""
        with self._moment():
            for group in self._of(tag):
                group.resume(self._retain)

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:
        """The contents that a paused tensor will have after resume(), on the CPU. None: it is in no paused memory
        that has a CPU backup. zero_copy: a view of the backup, valid until resume() or the next pause()."""
        if not x.is_cuda or not x.is_contiguous():
            raise stillmap.InvalidArgumentError("memory_saver.get_cpu_backup: the tensor must be contiguous, on a GPU")
        with self._lock:
            for group in self._groups.values():
                found = group.backup_of(x.data_ptr(), x.nbytes)
                if found is not None:
                    made = found.view(x.dtype).view(x.shape)
                    return made if zero_copy else made.clone()
        return None

    def set_disk_backup_dir(self, path: str) -> None:
        """The folder for enable_disk_backup, created if needed. Default: the variable TMS_DISK_BACKUP_DIR."""
        os.makedirs(path, exist_ok=True)
        self._directory = os.fspath(path)

    @property
    def enabled(self) -> bool:
        return True

    @property
    def hook_mode(self) -> str:
        return self._hook_mode

    @hook_mode.setter
    def hook_mode(self, value: str) -> None:
        """Accepted, and without effect: there is one way, which serves both."""
        if value not in _HOOK_MODES:
            raise stillmap.InvalidArgumentError(
                f"memory_saver: hook_mode is {value!r}; it must be one of {_HOOK_MODES}")
        self._hook_mode = value

    @property
    def memory_margin_bytes(self) -> int:
        raise NotImplementedError("memory_saver: memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if value:
            warnings.warn("stillmap.memory_saver: memory_margin_bytes has no effect; limit the memory of PyTorch with "
                          "torch.cuda.set_per_process_memory_fraction", stacklevel=2)

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether resume() keeps the host memory of CPU backups for the next pause()."""
        return self._retain

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._retain = bool(value)

    def _of(self, tag: str | None) -> list[Group]:
        return [group for key, group in self._groups.items() if not tag or key[0] == tag]

    def _group(self, tag: str, cpu: bool, disk: bool, backend: str | None) -> Group:
        if cpu and disk:
            raise stillmap.InvalidArgumentError(
                "memory_saver.region: enable_cpu_backup and enable_disk_backup exclude each other")
        if backend is not None and not cpu:
            raise stillmap.InvalidArgumentError("memory_saver.region: cpu_backup_backend requires enable_cpu_backup=True")
        if backend is not None and backend not in _HOST_BACKENDS:
            raise stillmap.InvalidArgumentError(
                f"memory_saver.region: cpu_backup_backend is {backend!r}; it must be one of {_HOST_BACKENDS}")
        store = (backend or self._backend) if cpu else "disk" if disk else "none"
        device = torch.cuda.current_device()
        with self._lock:
            # What is allocated while the tag is paused is not: its memory is a group of its own.
            for n in itertools.count():
                key = (tag, store, device, n)
                if key not in self._groups:
                    name = f"memory_saver/{tag}/{store}" + (f"/{n}" if n else "")
                    self._groups[key] = Group(name, store, device)
                if not self._groups[key].paused:
                    return self._groups[key]
        raise AssertionError("not reached")

    def _graph_pool(self, group: Group, handle: Any) -> st.Pool:
        with self._lock:
            # graph.pool() of an earlier capture is the id of our pool: the same memory again.
            for known in group.pools:
                if handle is not None and tuple(handle) in [tuple(p.id) for p in known.mem_pools]:
                    return known
            if handle is None:
                return group.new_pool()
            key = (group.tag, group.device, tuple(handle))
            if key not in self._graph_pools:
                self._graph_pools[key] = group.new_pool()
            return self._graph_pools[key]

    def _region_device(self) -> int | None:
        """The device of the region that this thread is in."""
        process = None if self._process is None else self._process_device
        return getattr(self._inside, "device", process)

    @contextmanager
    def _entered(self, device: int | None) -> Iterator[None]:
        before = self._region_device()
        self._inside.device = device
        try:
            yield
        finally:
            self._inside.device = before
