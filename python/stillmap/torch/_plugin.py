"""PyTorch's objects for allocators of C functions."""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import torch

import stillmap
from stillmap import _native


def allocator_of(allocate: int, free: int) -> Any:
    """PyTorch's allocator object for two C functions. It lives for ever: memory pools, and tensors that are freed
    while the interpreter ends, hold it by a plain pointer (pytorch issues 145168 and 146431)."""
    made = torch._C._cuda_customAllocator(allocate, free)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


def object_of(allocator: Any) -> int:
    """The address of PyTorch's C++ object, which pybind11 keeps behind the header of the Python object."""
    return ctypes.c_uint64.from_address(id(allocator) + object.__basicsize__).value


def connect(allocator: Any) -> list[str]:
    """Gives the allocator object our optional functions. Returns the hooks that this PyTorch does not have."""
    library = ctypes.CDLL(stillmap.plugin_path())
    library.stillmap_hooks.restype = ctypes.c_char_p
    missing = []
    for line in library.stillmap_hooks().decode().splitlines():
        hook, name = line.split()
        setter = getattr(allocator, hook, None)
        if setter is None:
            missing.append(hook)
        else:
            setter(ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    return missing


def address_of(name: str) -> int:
    value = ctypes.cast(getattr(ctypes.CDLL(stillmap.plugin_path()), name), ctypes.c_void_p).value
    assert value is not None
    return value


def route_copies(peers: bool | None) -> None:
    """Once PyTorch's allocator is chosen: copies between devices that cannot access each other's memory."""
    if torch.cuda.device_count() < 2:
        return
    try:
        _native._torch_route_copies(peers is not False)
    except stillmap.NotSupportedError as e:
        warnings.warn(f"{e}. Leave peers=True, where the devices can access each other's memory", RuntimeWarning,
                      stacklevel=3)


def device_index(device: Any) -> int:
    """An index, a torch.device, a string such as "cuda:1", or None: the current device."""
    if device is None:
        return int(torch.cuda.current_device())
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    made = torch.device(device)
    if made.type != "cuda":
        raise ValueError(f"stillmap.torch: {made} is not a CUDA device")
    return int(torch.cuda.current_device()) if made.index is None else made.index
