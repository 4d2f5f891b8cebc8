"""Suspending tags, and snapshots of tensors."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import stillmap

from . import _multiprocessing, _records
from ._plugin import device_index
from ._records import Builder, Recorder, Refused
from ._records import Memory as _Memory  # noqa: F401  for stillmap.memory_saver

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
    Failure: nothing changed. Raises as stillmap.suspend(), and BusyError while this thread captures a graph, and
    while other processes have tensors of the tag (torch.multiprocessing).
    """
    index = device_index(device)
    refuse_capture("stillmap.torch.suspend")
    _multiprocessing.refuse_shared("stillmap.torch.suspend", tag, index)
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
    """Writes all memory with the tags to an image, with checksums, and notes what `tensors` are.

    tensors: what restore() returns under these names, such as `model.state_dict()`: equal in class, dtype, layout,
    shape, strides, conjugate and negative bits, `requires_grad` and attributes. Tensors that share storage share it
    again, and one object under two names stays one. Their memory must be of the tags; only tensors without elements
    may be elsewhere. Not stored: gradients, hooks and autograd's history. docs/pytorch.md says which kinds are stored.
    Waits for the device. Raises InvalidArgumentError (a ValueError: a tensor that would not come back equal, by name;
    nothing is written then), and as stillmap.snapshot(). Cost: some 0.1 ms of the CPU's time for each tensor.
    """
    index = device_index(device)
    notes = {_NOTE: json.dumps(_records_of(tensors or {}, tags, index), separators=(",", ":")).encode()}
    refuse_capture("stillmap.torch.snapshot")
    torch.cuda.synchronize(index)
    return stillmap.snapshot(path, tags, device=index, compression=compression, parent=parent, notes=notes,
                             replace=replace, progress=progress)


class Restored(dict[str, torch.Tensor]):
    """Tensors by name, in memory that stays while one of them, or this object, lives."""

    memory: Any  # the stillmap.Restored


def restore(path: str, *, tags: str | Sequence[str] | None = None, device: Any = None, relocate: bool = True,
            progress: Callable[[int, int], None] | bool | None = None) -> Restored:
    """Brings an image back, in a fresh process too, and returns the tensors it was written with. Every byte is checked.

    tags: only this memory, and the tensors in it. relocate: at other addresses where the old ones are taken, which is
    right for tensors; False: then BusyError is raised, for memory that holds addresses of itself. A class that is not
    PyTorch's has to be imported before. Raises, with the name of a tensor that cannot be returned, InvalidArgumentError
    (its memory or its class is not there) and NotSupportedError (this PyTorch has no such tensors), and as
    stillmap.restore(). Failure: nothing is restored.
    """
    index = device_index(device)
    torch.cuda.init()
    _multiprocessing.install()
    memory = stillmap.restore(path, tags=tags, device=index, relocate=relocate, progress=progress)
    made = Restored()
    made.memory = memory
    note = _note_of(memory)
    builder = Builder(torch.device("cuda", index), note["storages"], memory._hold(), _move(memory.blocks))
    asked = None if tags is None else {tags} if isinstance(tags, str) else set(tags)
    with _quiet():
        for record in note["tensors"]:  # each is made, or this raises
            if "same_as" in record:
                if record["same_as"] in made:  # the other is not in memory of other tags
                    made[record["name"]] = made[record["same_as"]]
            elif asked is None or builder.tags(record) <= asked:
                made[record["name"]] = _tensor(record, builder)
    return made


def _records_of(tensors: Mapping[str, torch.Tensor], tags: str | Sequence[str], index: int) -> dict[str, Any]:
    names = [tags] if isinstance(tags, str) else list(tags)
    away = {s["tag"] for s in stillmap.suspended(index)}.intersection(names)
    if away:
        raise stillmap.BusyError(f"stillmap.torch.snapshot: tag {min(away)!r} is suspended; resume it first")
    places = {tag: [(p["address"], p["nbytes"], tag) for p in of["places"]]
              for tag, of in stillmap.stats(index)["tags"].items()} if tensors else {}
    saved = [place for tag in names for place in places.get(tag, [])]
    known = sorted(place for of in places.values() for place in of)

    def elsewhere(address: int) -> str:
        place = _records.place_of(known, address, 1)
        wanted = "the tags " + ", ".join(map(repr, names)) if len(names) != 1 else f"tag {names[0]!r}"
        found = f"is of tag {place[2]!r}" if place else "is not Stillmap's"
        return f"{found}, not of {wanted}"

    device = torch.device("cuda", index)
    recorder, again = (Recorder(device, saved, elsewhere) for _ in range(2))
    builder = Builder(device, recorder.storages, None, lambda address, nbytes: address)
    records: list[dict[str, Any]] = []
    first: dict[int, tuple[str, torch.Tensor]] = {}  # by identity, which the tensors keep
    with _quiet():
        for name, t in tensors.items():
            if not isinstance(name, str) or not isinstance(t, torch.Tensor):
                raise stillmap.InvalidArgumentError(
                    f"stillmap.torch.snapshot: tensors[{name!r}] is of the type {type(t).__qualname__}; names are "
                    "strings, and values are tensors")
            if id(t) in first:
                records.append({"name": name, "same_as": first[id(t)][0]})
                continue
            first[id(t)] = name, t
            try:
                records.append({"name": name, **_records.check(recorder, again, builder, t)})
            except Refused as e:
                raise stillmap.InvalidArgumentError(f"stillmap.torch.snapshot: tensor {name!r} {e}") from e.__cause__
    return {"version": _records.VERSION, "storages": recorder.storages, "tensors": records}


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch warns of experimental layouts and types; subclasses and modes, as of a default device, change operations."""
    with warnings.catch_warnings(), torch._C.DisableTorchFunction():
        warnings.simplefilter("ignore")
        yield


def _note_of(memory: Any) -> dict[str, Any]:
    note = json.loads(memory.notes.get(_NOTE, b"[]"))
    if isinstance(note, list):
        return _of_version_1(note, memory.blocks)
    if note["version"] != _records.VERSION:
        raise stillmap.NotSupportedError(
            f"stillmap.torch.restore: the image describes its tensors by version {note['version']}, this Stillmap knows "
            f"up to {_records.VERSION}; stillmap.restore() restores the memory without them")
    return note


def _of_version_1(entries: list[dict[str, Any]], blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Earlier images have addresses of plain tensors, without their storages and tags."""
    places = sorted((b["original_address"], b["nbytes"], b["tag"]) for b in blocks)
    storages: list[list[Any]] = []
    tensors = []
    for e in entries:
        elements = 0 if 0 in e["shape"] else 1 + sum((n - 1) * s for n, s in zip(e["shape"], e["stride"]))
        tensors.append({"name": e["name"], "kind": "strided", "dtype": e["dtype"], "type": "torch:Tensor", "grad": False,
                        "inference": False, "attributes": {}, "shape": e["shape"], "stride": e["stride"], "offset": 0,
                        "bits": {}, "storage": len(storages)})
        nbytes = elements * getattr(torch, e["dtype"]).itemsize
        place = _records.place_of(places, e["address"], nbytes)
        storages.append([e["address"], nbytes, place[2] if place else None if nbytes else ""])
    return {"version": 1, "storages": storages, "tensors": tensors}


def _tensor(record: dict[str, Any], builder: Builder) -> torch.Tensor:
    name = record["name"]
    try:
        return builder.tensor(record)
    except _records.Missing as e:
        raise stillmap.InvalidArgumentError(
            f"stillmap.torch.restore: tensor {name!r}: {e}; stillmap.restore() restores the memory without the "
            "tensors") from e
    except Exception as e:
        raise stillmap.NotSupportedError(
            f"stillmap.torch.restore: tensor {name!r} cannot be made by PyTorch {torch.__version__} "
            f"({_records.said_by(e)}); stillmap.restore() restores the memory without the tensors") from e


def _move(blocks: list[dict[str, Any]]) -> Callable[[int, int], int | None]:
    """Where an address of the image is now."""
    moved = {b["original_address"]: b["address"] - b["original_address"] for b in blocks}
    places = sorted((b["original_address"], b["nbytes"], b["tag"]) for b in blocks)

    def move(address: int, nbytes: int) -> int | None:
        place = _records.place_of(places, address, nbytes)
        return None if place is None else address + moved[place[0]]

    return move
