"""Suspending tags, and snapshots of tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import stillmap

from ._plugin import device_index

_NOTE = "stillmap.torch.tensors"


def refuse_capture(operation: str) -> None:
    """PyTorch captures on streams of its own, which the driver can be asked about only by name."""
    if torch.cuda.is_current_stream_capturing():
        raise stillmap.BusyError(f"{operation}: this thread captures a graph, which waiting for the device would "
                                 "invalidate: end the capture first")


def suspend(tag: str, *, device: Any = None, store: str = "pinned_host",
            directory: str | None = None) -> dict[str, Any]:
    """Waits for the device, saves the contents of all memory with the tag and gives its pages back to the device.

    Addresses stay, so tensors stay valid objects; using one before resume() is an illegal access, which CUDA does
    not forgive. store: "pinned_host", "file" (in `directory`; checked when it is read) or "discard".
    Failure: nothing changed. Raises as stillmap.suspend(), and BusyError while this thread captures a graph.
    """
    index = device_index(device)
    refuse_capture("stillmap.torch.suspend")
    return stillmap.suspend(tag, device=index, store=store, directory=directory)


def resume(tag: str, *, device: Any = None) -> dict[str, Any]:
    """Brings a suspended tag back. Where the device has too little memory PyTorch's cached memory is released, and
    it is tried once more; then OutOfMemoryError is raised, and the tag stays suspended: try again later."""
    index = device_index(device)
    try:
        return stillmap.resume(tag, device=index)
    except stillmap.OutOfMemoryError:
        torch.cuda.empty_cache()
        stillmap.trim(device=index)
        return stillmap.resume(tag, device=index)


def suspended(device: Any = None) -> list[dict[str, Any]]:
    return stillmap.suspended(device_index(device))


def snapshot(path: str, tags: str | Sequence[str], *, tensors: Mapping[str, torch.Tensor] | None = None,
             device: Any = None, compression: str | None = None, parent: str | None = None, replace: bool = False,
             progress: Callable[[int, int], None] | bool | None = None) -> dict[str, Any]:
    """Writes all memory with the tags to an image, with checksums, and notes where `tensors` lie.

    tensors: what restore() returns under these names, such as `model.state_dict()`. Each must be in memory of the
    tags. Waits for the device. Raises ValueError (a tensor is elsewhere), and as stillmap.snapshot().
    """
    index = device_index(device)
    notes = {_NOTE: json.dumps([_describe(name, t, index) for name, t in (tensors or {}).items()]).encode()}
    torch.cuda.synchronize(index)
    return stillmap.snapshot(path, tags, device=index, compression=compression, parent=parent, notes=notes,
                             replace=replace, progress=progress)


class Restored(dict[str, torch.Tensor]):
    """Tensors by name, in memory that stays while one of them, or this object, lives."""

    memory: Any  # the stillmap.Restored


def restore(path: str, *, tags: Sequence[str] | None = None, device: Any = None, relocate: bool = True,
            progress: Callable[[int, int], None] | bool | None = None) -> Restored:
    """Brings an image back, in a fresh process too, and returns the tensors it was written with. Every byte is checked.

    relocate: at other addresses where the old ones are taken, which is right for tensors; False: then BusyError is
    raised, for memory that holds addresses of itself. Raises as stillmap.restore().
    """
    index = device_index(device)
    torch.cuda.init()
    memory = stillmap.restore(path, tags=tags, device=index, relocate=relocate, progress=progress)
    made = Restored()
    made.memory = memory
    for entry in json.loads(memory.notes.get(_NOTE, b"[]")):
        address = _moved(entry["address"], memory.blocks)
        if address is not None:
            made[entry["name"]] = _tensor(entry, address, index, memory)
    return made


def _describe(name: str, t: torch.Tensor, index: int) -> dict[str, Any]:
    if t.device.type != "cuda" or t.device.index != index:
        raise ValueError(f"stillmap.torch.snapshot: tensor {name!r} is on {t.device}, not on cuda:{index}")
    return {"name": name, "address": t.data_ptr(), "dtype": str(t.dtype).removeprefix("torch."),
            "shape": list(t.shape), "stride": list(t.stride())}


def _moved(address: int, blocks: list[dict[str, Any]]) -> int | None:
    for b in blocks:
        if b["original_address"] <= address < b["original_address"] + b["nbytes"]:
            return address - b["original_address"] + b["address"]
    return None


class _Memory:
    """Bytes at an address, for torch.as_tensor, which keeps this object while the tensor lives."""

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3,
                                         "stream": None}


def _tensor(entry: dict[str, Any], address: int, index: int, owner: Any) -> torch.Tensor:
    dtype = getattr(torch, entry["dtype"])
    shape, stride = entry["shape"], entry["stride"]
    if 0 in shape:
        return torch.empty_strided(shape, stride, dtype=dtype, device=f"cuda:{index}")
    elements = 1 + sum((n - 1) * s for n, s in zip(shape, stride))
    whole = torch.as_tensor(_Memory(address, elements * dtype.itemsize, owner), device=f"cuda:{index}")
    return whole.view(dtype).as_strided(shape, stride)
