"""What a tensor is besides the bytes of its memory, as JSON, and the tensor again.

A record names the class, dtype, shape and what else PyTorch keeps of a tensor, and the storages that it is made of, by
address. `Recorder` makes records of tensors, `Builder` makes tensors of records. check() does both, so that a tensor of
a kind that PyTorch has learnt since either comes back equal, or is refused before anything is written.
"""

from __future__ import annotations

import copyreg
import importlib
import json
import sys
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch

VERSION = 2
Place = tuple[int, int, str]  # address, bytes, tag
Record = dict[str, Any]

_COMPRESSED = {  # layout: the names of its two index tensors
    torch.sparse_csr: ("crow_indices", "col_indices"), torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"), torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class Refused(Exception):
    """A tensor that has no record. The text continues "tensor 'x' "."""


class Missing(Exception):
    """Memory of a record that is not there, or a class that this process does not have."""


class Memory:
    """Bytes at an address, for torch.as_tensor, which keeps this object, and so `owner`, while the tensor lives."""

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3,
                                         "stream": None}


class Recorder:
    """Records of tensors on one device, in the memory of `places`."""

    def __init__(self, device: torch.device, places: list[Place], elsewhere: Callable[[int], str]) -> None:
        self.storages: list[list[Any]] = []  # address, bytes, tag: what records give the index of
        self._device = device
        self._places = sorted(places)
        self._elsewhere = elsewhere  # describes what is at an address
        self._numbers: dict[int, int] = {}  # index in storages, by the storage's identity
        self._kept: list[Any] = []  # so that no identity is used twice

    def record(self, t: torch.Tensor) -> Record:
        """Raises Refused."""
        self._check_class(t)
        if t.device != self._device:
            raise Refused(f"is on {t.device}, not on {self._device}: move it there, or leave it out")
        made: Record = {"kind": "strided", "dtype": _name_of(t.dtype), "type": _class_name(type(t)),
                        "grad": t.requires_grad, "inference": t.is_inference(), "attributes": _attributes_of(t)}
        if t.is_nested:
            made.update(self._nested(t))
        elif t.layout is torch.sparse_coo:
            made.update(self._coo(t))
        elif t.layout in _COMPRESSED:
            made.update(self._compressed(t))
        elif t.layout is torch.strided:
            made.update(self._strided(t))
            if t.is_quantized:
                made.update(kind="quantized", quantizer=_quantizer_of(t))
        else:
            raise Refused(f"has the layout {t.layout}, which cannot be stored: pass t.to_dense()")
        return made

    def _check_class(self, t: torch.Tensor) -> None:
        cls = type(t)
        if torch.nn.parameter.is_lazy(t):
            raise Refused(f"is an {cls.__name__}, which has no memory yet: run the module once, or leave it out")
        if cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            try:
                parts = ", ".join(t.__tensor_flatten__()[0])  # type: ignore[attr-defined]
            except Exception:  # not all classes tell
                parts = ""
            raise Refused(f"is a {cls.__module__}.{cls.__qualname__}, which defines what its operations do "
                          f"(__torch_dispatch__) and may have no memory of its own: pass the tensors that it is made "
                          f"of" + (f" ({parts})" if parts else ""))

    def _strided(self, t: torch.Tensor) -> Record:
        if t._is_zerotensor():
            raise Refused("is an efficient zero tensor, which has no memory: pass t.clone()")
        return {"shape": list(t.shape), "stride": list(t.stride()), "offset": t.storage_offset(),
                "bits": torch._utils.get_tensor_metadata(t), "storage": self._storage(t)}

    def _storage(self, t: torch.Tensor) -> int:
        storage = t.untyped_storage()
        address, nbytes = (storage.data_ptr(), storage.nbytes()) if storage.nbytes() else (0, 0)
        number = self._numbers.get(storage._cdata)
        if number is None:
            place = place_of(self._places, address, nbytes)
            number = self._numbers[storage._cdata] = len(self.storages)
            self._kept.append(storage)
            self.storages.append([address, nbytes, place[2]] if place else [0, 0, ""])
        # The memory of a tensor without elements is never read.
        if t.numel() and not self.storages[number][1]:
            raise Refused(f"is elsewhere: its memory, {nbytes} B at {address:#x}, {self._elsewhere(address)}; allocate it "
                          "with the tag, or leave it out")
        return number

    def _part(self, name: str, t: torch.Tensor) -> Record:
        self._kept.append(t)
        try:
            return self.record(t)
        except Refused as e:
            raise Refused(f"has a part, {name}, that {e}") from None

    def _parts(self, **parts: torch.Tensor) -> dict[str, Record]:
        return {name: self._part(name, t) for name, t in parts.items()}

    def _coo(self, t: torch.Tensor) -> Record:
        inner = t.detach()
        return {"kind": "coo", "shape": list(t.shape), "coalesced": t.is_coalesced(),
                "parts": self._parts(indices=inner._indices(), values=inner._values())}

    def _compressed(self, t: torch.Tensor) -> Record:
        inner = t.detach()
        indices = {name: getattr(inner, name)() for name in _COMPRESSED[t.layout]}
        return {"kind": "compressed", "layout": _name_of(t.layout), "shape": list(t.shape),
                "parts": self._parts(**indices, values=inner.values())}

    def _nested(self, t: torch.Tensor) -> Record:
        inner = t.detach()
        return {"kind": "nested", "sizes": inner._nested_tensor_size().tolist(),
                "strides": inner._nested_tensor_strides().tolist(),
                "offsets": inner._nested_tensor_storage_offsets().tolist(),
                "parts": self._parts(values=inner.values())}


class Builder:
    """Tensors of records, on one device. `move`: where an address of the records is now, if anywhere."""

    def __init__(self, device: torch.device, storages: list[list[Any]], owner: Any,
                 move: Callable[[int, int], int | None]) -> None:
        self._device, self._storages, self._owner, self._move = device, storages, owner, move
        self._made: dict[int, torch.UntypedStorage] = {}

    def tags(self, record: Record) -> set[str]:
        """Of the memory that the tensor needs."""
        own: set[str] = {self._storages[record["storage"]][2]} if "storage" in record else set()
        return own.union(*(self.tags(part) for part in record.get("parts", {}).values())) - {""}

    def tensor(self, record: Record) -> torch.Tensor:
        """Raises Missing, and what PyTorch raises where it has no such tensors."""
        cls = _class_of(record["type"])
        kinds = {"strided": self._strided, "quantized": self._quantized, "coo": self._coo,
                 "compressed": self._compressed, "nested": self._nested}
        with torch.inference_mode(record["inference"]):
            t = kinds[record["kind"]](record)
            if record.get("bits"):
                torch._utils.set_tensor_metadata(t, record["bits"])
            if cls is torch.Tensor:
                t.requires_grad_(record["grad"])
            else:
                t = torch.Tensor._make_subclass(cls, t, record["grad"])
        for name, value in record["attributes"].items():
            object.__setattr__(t, name, value)
        return t

    def _storage(self, number: int) -> torch.UntypedStorage:
        if number not in self._made:
            address, nbytes, _ = self._storages[number]
            if nbytes:
                now = self._move(address, nbytes)
                if now is None:
                    raise Missing(f"its memory, {nbytes} B at {address:#x}, is not in the image")
                memory = torch.as_tensor(Memory(now, nbytes, self._owner), device=self._device)
                self._made[number] = memory.untyped_storage()
            else:
                self._made[number] = torch.UntypedStorage(0, device=self._device)
        return self._made[number]

    def _in_place(self, t: torch.Tensor, record: Record) -> torch.Tensor:
        return t.set_(self._storage(record["storage"]), record["offset"], record["shape"], record["stride"])

    def _strided(self, record: Record) -> torch.Tensor:
        return self._in_place(torch.empty(0, dtype=_dtype(record), device=self._device), record)

    def _quantized(self, record: Record) -> torch.Tensor:
        quantizer = record["quantizer"]
        if "axis" in quantizer:
            scales, zero_points = (torch.tensor(quantizer[name]["values"], device=self._device,
                                                dtype=_dtype(quantizer[name])) for name in ("scales", "zero_points"))
            t = torch._empty_per_channel_affine_quantized(
                record["shape"], scales=scales, zero_points=zero_points, axis=quantizer["axis"], dtype=_dtype(record),
                device=self._device)
        else:
            t = torch._empty_affine_quantized(
                record["shape"], scale=quantizer["scale"], zero_point=quantizer["zero_point"], dtype=_dtype(record),
                device=self._device)
        return self._in_place(t, record)

    def _coo(self, record: Record) -> torch.Tensor:
        parts = {name: self.tensor(part) for name, part in record["parts"].items()}
        return torch.sparse_coo_tensor(**parts, size=record["shape"], is_coalesced=record["coalesced"],
                                       check_invariants=False)

    def _compressed(self, record: Record) -> torch.Tensor:
        layout = getattr(torch, record["layout"])
        parts = [self.tensor(record["parts"][name]) for name in (*_COMPRESSED[layout], "values")]
        return torch.sparse_compressed_tensor(*parts, size=record["shape"], layout=layout, check_invariants=False)

    def _nested(self, record: Record) -> torch.Tensor:
        shape = [torch.tensor(record[name], dtype=torch.int64, device="cpu")
                 for name in ("sizes", "strides", "offsets")]
        return torch._nested_view_from_buffer(self.tensor(record["parts"]["values"]), *shape)


def place_of(places: list[Place], address: int, nbytes: int) -> Place | None:
    """Of sorted places, the one that has the whole range."""
    at = bisect_right(places, address, key=lambda place: place[0]) - 1
    if at < 0 or address + nbytes > places[at][0] + places[at][1]:
        return None
    return places[at]


def _name_of(value: torch.dtype | torch.layout) -> str:
    return str(value).removeprefix("torch.")


def _dtype(record: Record) -> torch.dtype:
    made = getattr(torch, record["dtype"])
    assert isinstance(made, torch.dtype)
    return made


def _class_name(cls: type) -> str:
    name = f"{cls.__module__}:{cls.__qualname__}"
    try:
        found: Any = _class_of(name)
    except Missing:
        found = None
    if found is not cls:
        raise Refused(f"is of the class {cls.__module__}.{cls.__qualname__}, which cannot be found by that name: move "
                      f"the class to a module, or pass t.as_subclass(torch.Tensor)")
    return name


def _class_of(name: str) -> type[torch.Tensor]:
    # An image must not make a program import what it has not chosen to.
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module) if module.split(".")[0] == "torch" else sys.modules.get(module)
    for step in path.split("."):
        found = getattr(found, step, None)
    if not isinstance(found, type) or not issubclass(found, torch.Tensor):
        raise Missing(f"its class is {path} of the module {module}: import that first")
    return found


def _attributes_of(t: torch.Tensor) -> dict[str, Any]:
    slots = [name for name in copyreg._slotnames(type(t)) if hasattr(t, name)]  # type: ignore[attr-defined]
    found = {**vars(t), **{name: getattr(t, name) for name in slots}}
    for name, value in found.items():
        if not _is_json(value):
            raise Refused(f"has an attribute, {name}, of the type {type(value).__qualname__}, which cannot be stored: "
                          f"pass t.detach(), which has the same memory and no attributes")
    return found


def _is_json(value: Any) -> bool:
    if type(value) is list:
        return all(_is_json(v) for v in value)
    if type(value) is dict:
        return all(type(k) is str and _is_json(v) for k, v in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _quantizer_of(t: torch.Tensor) -> dict[str, Any]:
    scheme = t.qscheme()
    if scheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"scheme": str(scheme), "scale": t.q_scale(), "zero_point": t.q_zero_point()}
    scales, zero_points = ({"dtype": _name_of(v.dtype), "values": v.tolist()}
                           for v in (t.q_per_channel_scales(), t.q_per_channel_zero_points()))
    return {"scheme": str(scheme), "axis": t.q_per_channel_axis(), "scales": scales, "zero_points": zero_points}


def said_by(e: Exception) -> str:
    return f"{type(e).__name__}: " + str(e).strip().split("\n")[0]


def check(recorder: Recorder, again: Recorder, builder: Builder, t: torch.Tensor) -> Record:
    """The record of a tensor, of which the builder makes an equal one. Raises Refused."""
    try:
        record: Record = json.loads(json.dumps(recorder.record(t)))
        made = again.record(builder.tensor(record))
    except Refused:
        raise
    except Exception as e:  # whatever PyTorch says of a kind that it knows, and we do not
        raise Refused(f"is of a kind that cannot be stored ({said_by(e)})") from e
    if made != record:
        field = next(name for name in record if made.get(name) != record[name])
        raise Refused(f"is of a kind that cannot be stored: its {field}, {record[field]}, would become {made.get(field)}")
    return record
