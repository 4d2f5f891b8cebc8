"""The control server of a PyTorch program, and where it lets a request have its memory. docs/control.md"""

from __future__ import annotations

import functools
import os

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import stillmap
from stillmap import _native

from . import _multiprocessing

VARIABLE = "STILLMAP_CONTROL"


def start(control: bool | str | None) -> None:
    """Each device gets a server with its first memory, if `control`, or without one the environment, asks for it.
    True: at the default address."""
    if control is None:
        value = os.environ.get(VARIABLE, "")
        control = {"": False, "0": False, "1": True}.get(value, value)
    if control is False:
        return
    if control is not True and not control:
        raise stillmap.InvalidArgumentError("stillmap.torch.use: control is an empty address; True: the default one")
    _native._torch_serve(None if control is True else control)
    _stop_after_steps()


@functools.cache
def _stop_after_steps() -> None:
    register_optimizer_step_post_hook(_after_step)


def _after_step(_optimizer: object, _arguments: object, _keywords: object) -> None:
    if not torch.compiler.is_compiling():  # a compiled step has no place to stop at
        safe_point()


def safe_point() -> None:
    """stillmap.safe_point() for a loop of PyTorch's: lets a request of the control server have the memory here.

    With use(control=True), each step of a torch.optim optimizer ends with it; other loops call it between two steps.
    While this thread's current stream captures a graph it does nothing. In a rank of torch.distributed it refuses the
    requests: ranks would stop at different steps, and those that go on would wait for the others in a collective.
    """
    if not _native._safe_point_requested():
        return
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return
    reason = _obstacle()
    if reason is not None:
        _native._refuse_at_safe_point(reason)
    stillmap.safe_point()


def _obstacle() -> str | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = torch.distributed.get_world_size()
        if ranks > 1:
            return (f"it is one of {ranks} ranks of torch.distributed, which have to stop at the same step: "
                    "stillmap.serve(quiesce=...) can see to it")
    try:
        for kind, device, tag in _native._safe_point_requests():
            if kind not in ("snapshot", "resume"):
                _multiprocessing.refuse_shared("stillmap.torch.safe_point", tag, device)
    except stillmap.BusyError as e:
        return str(e)
    return None
