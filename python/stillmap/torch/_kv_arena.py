"""Tensors of a KV arena."""

from __future__ import annotations

import torch

import stillmap

from . import _multiprocessing


def kv_tensor(view: stillmap.KVTensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of the memory of `arena.tensor(...)`. It keeps the arena, and counts as a view.

        arena = stillmap.KVArena(layers=32, heads=8, dim=128, dtype="int16", blocks=32768)
        keys = stillmap.torch.kv_tensor(arena.tensor(layer, 0), torch.bfloat16)

    `dtype`: of as many bytes as the arena's, for types that only PyTorch has (bfloat16, float8). Only what was
    allocated has memory: an operation on the whole tensor (`zero_()`, `print`) is an illegal access of the device;
    index it by blocks, or by tokens, first.
    """
    if dtype is not None and dtype.itemsize != view.itemsize:
        raise ValueError(f"kv_tensor: an element of {dtype} has {dtype.itemsize} bytes, one of the arena's "
                         f"{view.dtype} {view.itemsize}: make the arena with a type of as many bytes")
    torch.cuda.init()
    _multiprocessing.install()
    tensor = torch.from_dlpack(view)
    return tensor if dtype is None else tensor.view(dtype)
