"""CUDA tensors of Stillmap's memory in torch.multiprocessing: queues, pipes, arguments of processes, DataLoader.

PyTorch sends a handle of CUDA's legacy IPC, which mapped pages do not have. In its place the message has a ticket, with
which the receiver fetches the pages as file descriptors. docs/torch_multiprocessing.md
"""

from __future__ import annotations

import functools
import os
from multiprocessing import reduction
from typing import Any

import torch
from torch.multiprocessing import reductions

import stillmap
from stillmap import _native

from . import _share_client, _share_server
from ._share_client import Ticket

_SENDING = "torch.multiprocessing, sending a CUDA tensor"
_reduce_by_torch = reductions.reduce_tensor


@functools.cache
def install() -> None:
    """From now on pickling for another process sends Stillmap's memory so, and all else as PyTorch does."""
    for kind in (*torch._tensor_classes, torch.Tensor, torch.nn.Parameter):
        reduction.register(kind, reduce_tensor)
    _share_server.warn_at_exit()
    reductions.reduce_tensor = reduce_tensor  # for the parts of sparse and nested tensors


def refuse_shared(operation: str, tag: str, device: int) -> None:
    """Raises BusyError while other processes have tensors of the tag."""
    server = _share_server.known_server()
    if server is not None:
        server.refuse_shared(operation, tag, device)


def reduce_tensor(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    if tensor.device.type != "cuda" or tensor.layout != torch.strided or tensor.is_nested \
            or (tensor.requires_grad and not tensor.is_leaf):  # which PyTorch refuses
        return _reduce_by_torch(tensor)
    storage = tensor.untyped_storage()
    ticket = _ticket_of(tensor, storage)
    if ticket is None:
        return _reduce_by_torch(tensor)
    torch.utils.hooks.warn_if_has_hooks(tensor)
    # In PyTorch's order: programs put the index of their device in the seventh place.
    return rebuild_tensor, (
        type(tensor), tensor.size(), tensor.stride(), tensor.storage_offset(), type(storage), tensor.dtype,
        tensor.device.index, ticket, storage.nbytes(), (tensor.is_conj(), tensor.is_neg()), tensor.requires_grad)


def rebuild_tensor(kind: type, size: Any, stride: Any, offset: int, _storage_kind: type, dtype: torch.dtype,
                   _device: int, ticket: Ticket, _nbytes: int, bits: tuple[bool, bool],
                   requires_grad: bool) -> torch.Tensor:
    install()  # to send it on
    storage = torch.storage.TypedStorage(wrap_storage=_share_client.receive(ticket), dtype=dtype, _internal=True)
    made = torch._utils._rebuild_tensor(storage, offset, size, stride)
    if bits[0]:
        torch._C._set_conj(made, True)
    if bits[1]:
        torch._C._set_neg(made, True)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(made, requires_grad=requires_grad)
    made.requires_grad = requires_grad
    return made


def _ticket_of(tensor: torch.Tensor, storage: torch.UntypedStorage) -> Ticket | None:
    """None: PyTorch has to send it."""
    if not storage.nbytes():
        return None
    ticket = _share_client.ticket_of(storage)
    if ticket is None:
        if _native._export_pages(tensor.device.index, storage.data_ptr(), storage.nbytes()) is None:
            return None
        server = _share_server.server()
        ticket = (server.address, os.getpid(), *server.offer(storage))
    try:
        _wait_for_writes(tensor)
    except BaseException:
        _share_client.withdraw(ticket)
        raise
    return ticket


def _wait_for_writes(tensor: torch.Tensor) -> None:
    """The receiver sees what was queued on the current stream."""
    stream = torch.cuda.current_stream(tensor.device)
    with torch.cuda.stream(stream):
        if torch.cuda.is_current_stream_capturing():
            raise stillmap.BusyError(f"{_SENDING}: the current stream captures a graph: send after the capture")
    stream.synchronize()
