"""Tensors that one process publishes, and any number of processes of the machine have at the same addresses.

A publication is one range of memory with all storages, one behind the other, and metadata: eight bytes with the
length of a description in JSON, the description, and the contents of tensors on the CPU. Nothing of it is executed
or imported, except that torch's own classes are looked up by their names.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

import stillmap

from . import _records
from ._plugin import device_index
from ._records import Builder, Memory, Recorder, Refused
from ._state import _quiet, refuse_capture

_FORMAT = "stillmap.torch.publication"
_VERSION = 1
_CPU = torch.device("cpu")
_ALIGNMENT = 512
_MOST_PAGES = 512  # of a publication: a holder has a descriptor for each
_MOST_METADATA = 64 << 20
# Addresses that neither the kernel nor libraries choose; one range of them for each publication.
_FIRST_ADDRESS, _LAST_ADDRESS, _ADDRESS_STEP = 0x3000_0000_0000, 0x5000_0000_0000, 1 << 30

_attached: weakref.WeakSet[Any] = weakref.WeakSet()  # every AttachedMemory with tensors of this module


class PublishedState(dict[str, Any]):
    """What was published, by name. The memory stays while this object or one of its tensors lives.

    For the device the tensors are read-only: a kernel or a copy that writes to one is a fault, from which CUDA does
    not recover. make_writable() gives this process private copies of the pages under a tensor.
    """

    memory: Any  # the stillmap.AttachedMemory


def publish(name: str, state_dict: Mapping[str, Any], *, holder: Any = None, replace: bool = False, device: Any = None,
            digests: bool = True, page_size: int = 0) -> PublishedState:
    """Copies the tensors of a state dict into memory that other processes can attach, publishes it under the name as
    its next generation, and returns what attach() returns.

    Each tensor comes back equal, as with stillmap.torch.snapshot(): class, dtype, layout, strides, shared storage. A
    tensor brings all of its storage. Tensors on the CPU, and values that JSON can hold, are copied to each process (64
    MiB at most). All other tensors are on one device.
    holder: the address of a stillmap.PublicationHolder; None: the environment variable STILLMAP_HOLDER.
    replace: the tensors that are given become tensors of the published memory, read-only, storage by storage as they
    are copied: the device needs room for all of them and the largest storage, not for all twice. For a module give the
    parameters themselves, `publish(name, module.state_dict(keep_vars=True), replace=True)`: tensors of a plain
    state_dict() are other objects, which share the parameters' memory.
    digests: of the contents, for verify=True of attach(). page_size: bytes of a page, of which a holder needs a
    descriptor each; 0: the smallest with which there are at most 512.
    Waits for the device. Failure: nothing is published, unless the error says otherwise; tensors that were replaced
    have their values, in memory of this process. Raises InvalidArgumentError (a ValueError: a tensor that would not
    come back equal, by name, before anything is copied), and as stillmap.publish().
    """
    operation = "stillmap.torch.publish"
    address = holder_of(holder, operation)

    def send(tags: str, **options: Any) -> Any:
        return stillmap.publish(name, tags, holder=address, **options)

    return publish_by(operation, name, state_dict, address, send,
                      replace=_given(state_dict) if replace else {}, device=device,
                      digests=digests, page_size=page_size)


def attach(name: str, *, holder: Any = None, device: Any = None, wait: float = 0.0, generation: int = 0,
           relocate: bool = False, verify: bool = False) -> PublishedState:
    """The tensors that publish() was given, in the same memory at the same addresses: nothing is copied or loaded.

    A class that is not PyTorch's has to be imported before. wait: seconds until somebody publishes the name.
    generation: 0 is the newest. relocate: at other addresses, if need be. verify: compares the contents with the
    publisher's digests. `module.load_state_dict(state, assign=True)` makes them the parameters of a module.
    Raises BusyError (not published in time; an address is in use in this process), InvalidArgumentError (nothing is
    published under the name, or not by publish(); on another device), CorruptError, and as stillmap.attach().
    """
    operation = "stillmap.torch.attach"
    address = holder_of(holder, operation)
    index = device_index(device)
    refuse_capture(operation)
    torch.cuda.init()
    return state_of(operation, stillmap.attach(name, holder=address, device=index, wait=wait, generation=generation,
                                               relocate=relocate, verify=verify))


def attach_or_load(name: str, load: Callable[[], Mapping[str, Any]], *, holder: Any = None, device: Any = None,
                   wait: float = 1800.0, relocate: bool = False, verify: bool = False, digests: bool = True,
                   page_size: int = 0) -> PublishedState:
    """attach(), where the name is published. Where it is not, one of the processes that call this calls load(), which
    returns a state dict, and publishes that; the others wait for it, `wait` seconds at most. If it fails or dies,
    the next one loads.

    What load() returned is given up as with replace=True of publish(): return the only references. Raises what load()
    raises, and as attach() and publish().
    """
    operation = "stillmap.torch.attach_or_load"
    address = holder_of(holder, operation)
    index = device_index(device)
    refuse_capture(operation)
    torch.cuda.init()
    found = stillmap.attach_or_claim(name, holder=address, device=index, wait=wait, relocate=relocate, verify=verify)
    if not isinstance(found, stillmap.PublicationClaim):
        return state_of(operation, found)
    with found:
        loaded = load()
        return publish_by(operation, name, loaded, address, found.publish, replace=_given(loaded), device=index,
                          digests=digests, page_size=page_size)


def make_writable(tensor: torch.Tensor) -> torch.Tensor:
    """Gives this process private copies of the pages under a tensor of published memory, at the same addresses, and
    returns the tensor. What else lies in these pages is private, too; other processes see no change.

    Copies on the current stream, and waits for the device. A page that is private already stays. Raises
    InvalidArgumentError (the tensor is not of published memory), OutOfMemoryError; nothing changed then.
    """
    operation = "stillmap.torch.make_writable"
    if tensor.layout is not torch.strided:
        raise stillmap.InvalidArgumentError(f"{operation}: the layout is {tensor.layout}: pass the tensors that it is "
                                            "made of, its indices and values")
    if tensor.numel() == 0:
        return tensor
    refuse_capture(operation)
    elements = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    address, nbytes = tensor.data_ptr(), elements * tensor.element_size()
    memory = _memory_at(address)
    if memory is None:
        raise stillmap.InvalidArgumentError(f"{operation}: the tensor, {nbytes} B at {address:#x}, is not in memory that "
                                            "this process has published or attached by stillmap.torch")
    memory.make_writable(address, nbytes, torch.cuda.current_stream(tensor.device))
    return tensor


# ---- the holder ----


def holder_of(given: Any, operation: str) -> Any:
    address = given if given is not None else os.environ.get("STILLMAP_HOLDER")
    if not address:
        raise stillmap.InvalidArgumentError(
            f"{operation}: no holder is named: pass holder=, or set STILLMAP_HOLDER, to the address of a "
            "stillmap.PublicationHolder that some process keeps open")
    return address


# ---- what is published ----


class _Storages(Recorder):
    """Records of tensors anywhere on a device. Keeps the storages that it numbers."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, [(0, 1 << 64, "")], lambda address: "is nowhere")
        self.found: list[torch.UntypedStorage] = []

    def _storage(self, t: torch.Tensor) -> int:
        number = super()._storage(t)
        if number == len(self.found):
            self.found.append(t.untyped_storage())
        return number


class _Tensors(Builder):
    """Tensors of records, on storages that are made when they are needed."""

    def __init__(self, device: torch.device, storage: Callable[[int], torch.UntypedStorage]) -> None:
        super().__init__(device, [], None, lambda address, nbytes: None)
        self._of = storage

    def _storage(self, number: int) -> torch.UntypedStorage:
        if number not in self._made:
            self._made[number] = self._of(number)
        return self._made[number]


class _Plan:
    """The records of a state dict, and where its storages will lie."""

    def __init__(self, operation: str, state_dict: Mapping[str, Any], device: Any) -> None:
        self.device = torch.device("cuda", device_index(_device_of(state_dict) if device is None else device))
        self._recorders = {d: (_Storages(d), _Storages(d)) for d in (self.device, _CPU)}
        self._builders = {d: _Tensors(d, first.found.__getitem__) for d, (first, _) in self._recorders.items()}
        self.entries: list[dict[str, Any]] = []
        first: dict[int, str] = {}  # the name of each tensor, by identity
        for name, value in state_dict.items():
            if not isinstance(name, str):
                raise stillmap.InvalidArgumentError(f"{operation}: the name {name!r} is not a string")
            if id(value) in first:
                self.entries.append({"name": name, "same_as": first[id(value)]})
                continue
            try:
                self.entries.append({"name": name, **self._entry(value)})
            except Refused as e:
                raise stillmap.InvalidArgumentError(f"{operation}: {name!r} {e}") from e.__cause__
            if isinstance(value, torch.Tensor):
                first[id(value)] = name
        self.storages = list(self._recorders[self.device][0].found)  # emptied as they are copied
        self.offsets, self.nbytes = _laid_out([s.nbytes() for s in self.storages], _ALIGNMENT)
        self.metadata = self._metadata(operation, getattr(state_dict, "_metadata", None))
        del self._recorders, self._builders  # they keep all storages

    def _entry(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, torch.Tensor):
            if _records._is_json(value):
                return {"value": value}
            raise Refused(f"is of the type {type(value).__qualname__}, which is neither a tensor nor a value that JSON "
                          "can hold: leave it out")
        try:
            where = value.device.type
        except Exception:  # of a class with an idea of its own; check() says so
            where = "cuda"
        if where not in ("cpu", "cuda"):
            raise Refused(f"is on {value.device}: leave it out, or move it to {self.device}")
        on = _CPU if where == "cpu" else self.device
        return {"on": on.type, "record": _records.check(*self._recorders[on], self._builders[on], value)}

    def _metadata(self, operation: str, versions: Any) -> bytes:
        on_cpu = self._recorders[_CPU][0].found
        offsets, _ = _laid_out([s.nbytes() for s in on_cpu], 1)
        header = json.dumps({
            "format": _FORMAT, "version": _VERSION, "entries": self.entries,
            "cuda": [[at, s.nbytes()] for at, s in zip(self.offsets, self.storages)],
            "cpu": [[at, s.nbytes()] for at, s in zip(offsets, on_cpu)],
            "versions": dict(versions) if _is_versions(versions) else None,
        }, separators=(",", ":")).encode()
        contents = [ctypes.string_at(s.data_ptr(), s.nbytes()) if s.nbytes() else b"" for s in on_cpu]
        whole = b"".join([len(header).to_bytes(8, "little"), header, *contents])
        if len(whole) > _MOST_METADATA:
            raise stillmap.InvalidArgumentError(
                f"{operation}: the description and the tensors on the CPU have {len(whole)} B; {_MOST_METADATA} B are "
                "possible: move the tensors to the device")
        return whole


def _device_of(state_dict: Mapping[str, Any]) -> torch.device | None:
    """Of the first tensor on a GPU."""
    for t in state_dict.values():
        if type(t) in (torch.Tensor, torch.nn.Parameter) and t.is_cuda:
            return t.device
    return None


def _laid_out(sizes: list[int], alignment: int) -> tuple[list[int], int]:
    """Where each begins, and where all end."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // alignment) * alignment
    return offsets, end


def _is_versions(versions: Any) -> bool:
    """What Module.state_dict() adds to the dict, and load_state_dict() reads."""
    return isinstance(versions, Mapping) and _records._is_json(dict(versions))


# ---- publishing ----


class _Owner:
    """What keeps the memory of tensors: the buffer that they are copied into, later the attached memory."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory


def publish_by(operation: str, name: str, state_dict: Mapping[str, Any], holder: Any, send: Callable[..., Any], *,
               replace: Mapping[str, Sequence[torch.Tensor]], device: Any = None, digests: bool = True,
               page_size: int = 0) -> PublishedState:
    """replace: by name, the tensors that get the published memory as their data; `state_dict` has among them whatever
    it keeps, so that the old memory is free. send: publishes a tag, as stillmap.publish() does."""
    refuse_capture(operation)
    torch.cuda.init()
    with _quiet():
        plan = _Plan(operation, state_dict, device)
        index = device_index(plan.device)
        buffer, tag = _buffer(name, plan.nbytes, index, page_size)
        _fill(plan, buffer, replace)
        done = send(tag, device=index, metadata=plan.metadata, digests=digests)
        options = {"holder": holder, "device": index, "generation": done["generation"]}
        # As a reader of its own memory this process can have private pages, and the holder knows of it. There is a
        # lease, and a mapping, all the time.
        there = stillmap.attach(name, relocate=True, **options)
        owner = buffer.owner
        owner.memory = None
        buffer.memory.close()
        moved = ""
        try:
            memory = stillmap.attach(name, **options)
            owner.memory = memory._hold()
        except stillmap.BusyError as e:
            moved = f"{operation}: {name!r} is published, but this process has it at other addresses: {e}"
            memory, there = there, None
        if there is not None:
            there.close()
        state = state_of(operation, memory)
        if moved:
            _replace(replace, state)
    if moved:
        warnings.warn(moved, RuntimeWarning, stacklevel=3)
    return state


class _Buffer:
    def __init__(self, memory: Any, device: torch.device) -> None:
        self.memory, self.device = memory, device
        self.address = memory.address
        self.owner = _Owner(memory)

    def storage(self, offset: int, nbytes: int) -> torch.UntypedStorage:
        return _storage_at(self.address + offset, nbytes, self.owner, self.device)

    def grow(self, nbytes: int) -> None:
        stream = torch.cuda.current_stream(self.device)
        if nbytes <= self.memory.nbytes:
            return
        try:
            self.memory.resize(nbytes, stream)
        except stillmap.OutOfMemoryError:  # PyTorch may keep what it does not use
            torch.cuda.empty_cache()
            stillmap.trim(device=self.memory.device)
            self.memory.resize(nbytes, stream)


def _buffer(name: str, nbytes: int, index: int, page_size: int) -> tuple[_Buffer, str]:
    page = page_size or stillmap.device_info(index)["page_bytes"]
    while not page_size and nbytes > _MOST_PAGES * page:
        page *= 2
    whole = max(-(-nbytes // page), 1) * page
    places = max((_LAST_ADDRESS - _FIRST_ADDRESS - whole) // _ADDRESS_STEP, 1)
    for _ in range(8):
        place = secrets.randbelow(places)
        hint, tag = _FIRST_ADDRESS + place * _ADDRESS_STEP, f"published:{name}:{place}"
        memory = stillmap.GrowableBuffer(device=index, reserve=whole, tag=tag, hint=hint, exportable=True,
                                         page_size=page)
        if memory.address == hint:
            break
    memory.resize(1)  # a publication without tensors on the device has a page
    return _Buffer(memory, torch.device("cuda", index)), tag


def _fill(plan: _Plan, buffer: _Buffer, replace: Mapping[str, Sequence[torch.Tensor]]) -> None:
    """Copies storage by storage. Tensors are replaced once all of their storages are there."""
    stream = torch.cuda.current_stream(buffer.device)
    made = _Tensors(buffer.device, lambda i: buffer.storage(plan.offsets[i], sizes[i]))
    sizes = [s.nbytes() for s in plan.storages]
    complete: dict[int, list[dict[str, Any]]] = {}
    if replace:
        for entry in plan.entries:
            if entry.get("on") == "cuda":
                complete.setdefault(max(_storages_in(entry["record"]), default=-1), []).append(entry)
    cached = 0  # bytes that PyTorch may keep since it was asked to give them back
    for i, nbytes in enumerate(sizes):
        if nbytes:
            buffer.grow(plan.offsets[i] + nbytes)
            source = _bytes_of(plan.storages[i], buffer.device)
            _bytes_of(buffer.storage(plan.offsets[i], nbytes), buffer.device).copy_(source)
            source.record_stream(stream)
            del source
        plan.storages[i] = None  # type: ignore[call-overload]
        for entry in complete.get(i, []):
            _replace(replace, {entry["name"]: made.tensor(entry["record"])})
        cached += nbytes if replace else 0
        if cached >= buffer.memory.page_bytes:
            torch.cuda.empty_cache()
            cached = 0


def _given(state_dict: Mapping[str, Any]) -> dict[str, Sequence[torch.Tensor]]:
    return {name: [t] for name, t in state_dict.items() if isinstance(t, torch.Tensor)}


def _replace(tensors: Mapping[str, Sequence[torch.Tensor]], by: Mapping[str, Any]) -> None:
    with torch.no_grad():
        for name, new in by.items():
            if isinstance(new, torch.Tensor) and new.device.type == "cuda":
                for t in tensors.get(name, ()):
                    t.data = new.detach()


def _storages_in(record: dict[str, Any]) -> Iterator[int]:
    if "storage" in record:
        yield record["storage"]
    for part in record.get("parts", {}).values():
        yield from _storages_in(part)


def _bytes_of(storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, [storage.nbytes()], [1])


def _storage_at(address: int, nbytes: int, owner: Any, device: torch.device) -> torch.UntypedStorage:
    if not nbytes:
        return torch.UntypedStorage(0, device=device)
    return torch.as_tensor(Memory(address, nbytes, owner), device=device).untyped_storage()


# ---- attaching ----


def state_of(operation: str, memory: Any) -> PublishedState:
    description, contents = _description(operation, memory)
    device = torch.device("cuda", memory.device)
    state = PublishedState()
    state.memory = memory
    try:
        whole, = memory.ranges()
        places = {"cuda": description["cuda"], "cpu": description["cpu"]}
        _check_places(places["cuda"], whole.nbytes)
        _check_places(places["cpu"], len(contents))
        hold = memory._hold()

        def on_device(i: int) -> torch.UntypedStorage:
            at, nbytes = places["cuda"][i]
            return _storage_at(whole.address + at, nbytes, hold, device)

        def on_cpu(i: int) -> torch.UntypedStorage:
            at, nbytes = places["cpu"][i]
            if not nbytes:
                return torch.UntypedStorage(0)
            return torch.frombuffer(bytearray(contents[at:at + nbytes]), dtype=torch.uint8).untyped_storage()

        builders = {"cuda": _Tensors(device, on_device), "cpu": _Tensors(_CPU, on_cpu)}
        with _quiet():
            for entry in description["entries"]:
                state[entry["name"]] = _value(operation, entry, builders, state)
        if description["versions"] is not None:
            state._metadata = dict(description["versions"])  # type: ignore[attr-defined]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError, OverflowError) as e:
        if isinstance(e, stillmap.Error):
            raise
        raise stillmap.CorruptError(f"{operation}: the description of {memory.name!r} is damaged "
                                    f"({_records.said_by(e)})") from e
    _attached.add(memory)
    return state


def _description(operation: str, memory: Any) -> tuple[dict[str, Any], memoryview]:
    metadata = memoryview(memory.metadata)
    length = int.from_bytes(metadata[:8], "little")
    try:
        description = json.loads(bytes(metadata[8:8 + length]))
        ours = isinstance(description, dict) and description.get("format") == _FORMAT
    except ValueError:
        ours = False
    if not ours:
        raise stillmap.InvalidArgumentError(
            f"{operation}: {memory.name!r} was not published by stillmap.torch.publish(): take stillmap.attach()")
    if description.get("version") != _VERSION:
        raise stillmap.NotSupportedError(
            f"{operation}: {memory.name!r} is described by version {description.get('version')}, this Stillmap knows "
            f"{_VERSION}")
    return description, metadata[8 + length:]


def _check_places(places: list[list[int]], limit: int) -> None:
    for at, nbytes in places:
        if type(at) is not int or type(nbytes) is not int or at < 0 or nbytes < 0 or at + nbytes > limit:
            raise ValueError(f"a storage of {nbytes} B at {at} does not lie in {limit} B")


def _value(operation: str, entry: dict[str, Any], builders: dict[str, _Tensors], state: PublishedState) -> Any:
    if "same_as" in entry:
        return state[entry["same_as"]]
    if "value" in entry:
        return entry["value"]
    builder, record = builders[entry["on"]], entry["record"]
    try:
        return builder.tensor(record)
    except _records.Missing as e:
        raise stillmap.InvalidArgumentError(f"{operation}: tensor {entry['name']!r}: {e}") from e
    except RuntimeError as e:
        raise stillmap.NotSupportedError(f"{operation}: tensor {entry['name']!r} cannot be made by PyTorch "
                                         f"{torch.__version__} ({_records.said_by(e)})") from e


def memory_of(tensor: torch.Tensor) -> Any:
    """The AttachedMemory that the tensor lies in, or None."""
    return _memory_at(tensor.data_ptr()) if tensor.numel() else None


def _memory_at(address: int) -> Any:
    for memory in list(_attached):
        try:
            if any(0 <= address - each.address < each.nbytes for each in memory.ranges()):
                return memory
        except stillmap.InvalidArgumentError:  # it is closed
            continue
    return None
