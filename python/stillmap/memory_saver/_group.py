"""Memory of one tag, one kind of backup and one device."""

from __future__ import annotations

import torch

import stillmap
import stillmap.torch as st
from stillmap import _native
from stillmap.torch._state import _Memory, refuse_capture

_PAUSE = "memory_saver.pause"


class Group:
    """It is paused and resumed as a whole.

    A CPU backup is copied by PyTorch, not kept by stillmap.suspend(): get_cpu_backup() has to read it while the memory
    is away. A disk backup is stillmap.suspend()'s, with checksums.
    """

    def __init__(self, tag: str, store: str, device: int) -> None:
        self.tag = tag
        self.store = store  # "pinned", "mmap", "disk", "none"
        self.device = device
        self.pools: list[st.Pool] = []
        self.pool = self.new_pool()
        self.paused = False
        self._saved: dict[tuple[int, int], torch.Tensor] = {}  # by address and size of PyTorch's segments

    def new_pool(self) -> st.Pool:
        made = st.pool(self.tag, device=self.device)
        self.pools.append(made)
        return made

    def pause(self, directory: str | None) -> bool:
        """False: there was nothing to pause."""
        heap = st.stats(self.tag, self.device)
        if self.paused or not heap or heap["total"]["committed"] == 0:
            return False
        refuse_capture(_PAUSE)
        if self.store in ("pinned", "mmap") and stillmap.device_info(self.device)["integrated"]:
            raise stillmap.NotSupportedError(
                f"{_PAUSE}: device {self.device} has no memory but the host's, so a CPU backup would take as much as "
                "is released; use enable_disk_backup=True, or no backup")
        if self.store == "disk" and directory is None:
            raise stillmap.InvalidArgumentError(
                f"{_PAUSE}: a region has enable_disk_backup, and no folder is set; call set_disk_backup_dir() "
                "or set TMS_DISK_BACKUP_DIR")
        if self.store in ("pinned", "mmap"):
            self._save()
        if self.store == "disk":
            st.suspend(self.tag, device=self.device, store="file", directory=directory)
        else:
            st.suspend(self.tag, device=self.device, store="discard")
        self.paused = True
        return True

    def resume(self, retain: bool) -> None:
        if not self.paused:
            return
        refuse_capture("memory_saver.resume")
        st.resume(self.tag, device=self.device)
        self.paused = False
        # A segment whose tensors were freed meanwhile may be gone.
        for key in self._segments() & self._saved.keys():
            self._bytes(*key).copy_(self._saved[key], non_blocking=True)
        torch.cuda.synchronize(self.device)
        if not retain:
            self._saved.clear()

    def backup_of(self, address: int, nbytes: int) -> torch.Tensor | None:
        if not self.paused:
            return None
        for (begin, size), saved in self._saved.items():
            if begin <= address and address + nbytes <= begin + size:
                return saved[address - begin:address - begin + nbytes]
        return None

    def _segments(self) -> set[tuple[int, int]]:
        found = {(s["address"], s["total_size"]) for pool in self.pools for s in pool.segments()}
        return {(address, size) for address, size in found if size}

    def _save(self) -> None:
        torch.cuda.synchronize(self.device)
        present = self._segments()
        kept = {key: saved for key, saved in self._saved.items() if key in present}
        # All or nothing: past the limit of a control group the kernel would kill the process.
        _native._check_room_for_backup(sum(nbytes for _, nbytes in present - kept.keys()))
        for key in present:
            if key not in kept:
                kept[key] = self._host_memory(key[1])
            kept[key].copy_(self._bytes(*key), non_blocking=True)
        torch.cuda.synchronize(self.device)
        self._saved = kept

    def _host_memory(self, nbytes: int) -> torch.Tensor:
        """Of exactly this size, and given back with the tensor: PyTorch rounds pinned memory up to a power of two and
        keeps it."""
        if self.store == "mmap":
            return torch.empty(nbytes, dtype=torch.uint8)
        return torch.from_dlpack(_native._pinned_memory(nbytes, self.device))

    def _bytes(self, address: int, nbytes: int) -> torch.Tensor:
        return torch.as_tensor(_Memory(address, nbytes, self), device=torch.device("cuda", self.device))
