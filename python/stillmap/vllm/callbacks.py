"""Callbacks around suspension, for memory that is registered with a network card or a communicator
(NIXL, NCCL, RDMA): a registration is of physical pages, which are others after a resume.

vLLM unregisters and registers the KV caches of its own connectors (`unregister_kv_caches`,
`restore_kv_caches`); these callbacks are for what it does not know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Range(NamedTuple):
    """Device memory of one tag. The address stays the same across suspension."""

    tag: str
    address: int
    nbytes: int


Callback = Callable[[list[Range]], None]


class Registration:
    """A registered callback; `remove()` ends it. Also a context manager."""

    def __init__(self, among: list[Callback], callback: Callback) -> None:
        self._among, self._callback = among, callback

    def remove(self) -> None:
        with _lock:
            if self._callback in self._among:
                self._among.remove(self._callback)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


_lock = threading.Lock()
_suspending: list[Callback] = []
_resumed: list[Callback] = []


def _add(among: list[Callback], callback: Callback) -> Registration:
    if not callable(callback):
        raise TypeError(f"stillmap.vllm: a callback must be callable, not {type(callback).__name__}")
    with _lock:
        among.append(callback)
    return Registration(among, callback)


def on_suspend(callback: Callback) -> Registration:
    """Calls `callback(ranges)` before pages are unmapped. If it raises, nothing is suspended, and the callbacks of
    on_resume are called."""
    return _add(_suspending, callback)


def on_resume(callback: Callback) -> Registration:
    """Calls `callback(ranges)` after pages were mapped and the contents are back. If it raises, the memory
    stays resumed, the other callbacks are called, and the error is raised at the end."""
    return _add(_resumed, callback)


def suspending(ranges: Iterable[Range]) -> None:
    with _lock:
        callbacks = list(_suspending)
    listed = list(ranges)
    if not listed:
        return
    for callback in callbacks:
        callback(listed)


def resumed(ranges: Iterable[Range]) -> None:
    with _lock:
        callbacks = list(_resumed)
    listed = list(ranges)
    if not listed:
        return
    failed: BaseException | None = None
    for callback in callbacks:
        try:
            callback(listed)
        except Exception as e:  # the others have to register their memory too
            failed = failed or e
    if failed is not None:
        raise failed
