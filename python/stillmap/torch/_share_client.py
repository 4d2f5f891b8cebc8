"""The receiver's side of CUDA tensors in torch.multiprocessing: maps the pages of other processes."""

from __future__ import annotations

import itertools
import json
import os
import resource
import socket
import threading
from collections import deque
from typing import Any

import torch
from torch.multiprocessing import reductions
from torch.multiprocessing.reductions import StorageWeakRef

import stillmap
from stillmap import _native

from . import _share_server
from ._share_server import MOST_BYTES, MOST_FDS

_RECEIVING = "torch.multiprocessing, receiving a CUDA tensor"
_SENDING = "torch.multiprocessing, sending a received CUDA tensor"

# (address of the sender's server, its process, offer, number of the storage)
Ticket = tuple[str, int, int, int]


class Session:
    """The connection to the process that made the tensors. Threads: safe, also from finalizers."""

    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self.pid = pid
        self.ended = False
        self.inherited = False
        self._requests = itertools.count()
        self._lock = threading.Lock()
        self._ending: deque[tuple[str, int]] = deque()  # leases and offers
        self._socket = socket.socket(socket.AF_UNIX, _share_server.PACKET)
        try:
            self._socket.connect(b"\0" + address.encode())
        except OSError as e:
            self._socket.close()
            raise self.gone(_RECEIVING) from e

    def gone(self, operation: str) -> stillmap.Error:
        return stillmap.Error(
            f"{operation}: process {self.pid}, which made the tensor, has ended. A tensor can be received, and be sent "
            "on, while the process that made it runs: let that wait for its receivers, or send a clone")

    def call(self, operation: str, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """The reply, and the descriptors that came with it: fewer than were sent where this process may open no more."""
        try:
            with self._lock:
                reply, fds = self._exchange({**request, "id": next(self._requests)})
        except OSError as e:
            self.ended = True
            raise self.gone(operation) from e
        finally:
            self._flush()
        if "error" in reply:
            kind = getattr(stillmap, reply["kind"], stillmap.Error)
            raise kind(f"{operation}: process {self.pid}, which made the tensor, refused: {reply['error']}")
        return reply, fds

    def _exchange(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        self._socket.sendall(json.dumps(request).encode())
        while True:
            text, fds, _, _ = socket.recv_fds(self._socket, MOST_BYTES, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
            if not text:
                raise ConnectionError
            reply = json.loads(text)
            if reply["id"] == request["id"]:
                return reply, fds
            for fd in fds:  # of a request that Ctrl-C interrupted
                os.close(fd)
            self._ending.extend((kind + "s", reply[kind]) for kind in ("lease", "offer") if kind in reply)

    def release(self, lease: int) -> None:
        self._ending.append(("leases", lease))
        self._flush()

    def drop(self, offer: int) -> None:
        self._ending.append(("offers", offer))
        self._flush()

    def _flush(self) -> None:
        # One thread at a time, which sends what the others ended, too. A finalizer may run inside of call().
        while self._ending and self._lock.acquire(blocking=False):
            try:
                ending = [self._ending.popleft() for _ in range(min(len(self._ending), 1000))]
                if not self._send({"op": "end", **{kind: [n for of, n in ending if of == kind]
                                                   for kind in ("leases", "offers")}}):
                    self._ending.extendleft(reversed(ending))
                    return
            finally:
                self._lock.release()

    def _send(self, message: dict[str, Any]) -> bool:
        """False: the sender is stopped, and its buffer is full."""
        try:
            self._socket.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            self.ended = True  # with it, all that it kept
        return True

    def abandon(self) -> None:
        """In a forked child."""
        self.inherited = True
        os.close(self._socket.detach())


class Region:
    """Mapped pages of another process, which several storages may share."""

    __slots__ = ("pages", "device", "users", "key")

    def __init__(self, pages: Any, device: int, key: tuple[str, str]) -> None:
        self.pages = pages
        self.device = device
        self.key = key
        self.users = 0


class Hold:
    """What a received storage keeps, until it ends."""

    __slots__ = ("region", "session", "lease", "cdata", "__weakref__")

    def __init__(self, region: Region, session: Session, lease: int) -> None:
        self.region = region
        self.session = session
        self.lease = lease
        self.cdata = 0

    def __del__(self) -> None:
        if self.session.inherited:
            return  # in a forked child: it unmaps nothing
        if _received.get(self.cdata, (None, None))[1] == self.lease:
            del _received[self.cdata]
        _ended.append((self.region, self.session, self.lease))
        end_unused()


_lock = threading.Lock()  # of what follows; finalizers only try to take it
_sessions: dict[str, Session] = {}
_regions: dict[tuple[str, str], Region] = {}
_received: dict[int, tuple[Session, int, int]] = {}  # session, lease and number, by the storage's _cdata
_ended: deque[tuple[Region, Session, int]] = deque()
_inherited: list[Any] = []


def receive(ticket: Ticket) -> torch.UntypedStorage:
    """The storage of a ticket: the one that this process has already, or a new one on the same memory."""
    address, pid, offer, number = ticket
    own = _share_server.known_server()
    if own is not None and own.address == address:
        storage = own.take_back(offer)
        if storage is None:
            raise stillmap.Error(f"{_RECEIVING}: the message was received before: a message is for one receiver")
        return storage
    torch.cuda.init()
    try:
        with _lock:
            session = _session(address, pid)
            cached = reductions.storage_from_cache(torch.UntypedStorage, ("stillmap", address, number))
            if cached is not None:
                session.drop(offer)
                return cached
            return _open(session, offer, number)
    finally:
        end_unused()


def ticket_of(storage: torch.UntypedStorage) -> Ticket | None:
    """A new ticket for a storage that this process received, from the process that made it. None: it was not received."""
    known = _received.get(storage._cdata)
    if known is None:
        return None
    session, lease, number = known
    reply, _ = session.call(_SENDING, {"op": "forward", "lease": lease})
    return session.address, session.pid, reply["offer"], number


def withdraw(ticket: Ticket) -> None:
    """Nobody gets the ticket."""
    address, _, offer, _ = ticket
    own = _share_server.known_server()
    if own is not None and own.address == address:
        own.take_back(offer)
    else:
        _sessions[address].drop(offer)


def end_unused() -> None:
    """Gives back what no storage uses any more, unless another thread is at it, or a graph is captured."""
    while _ended and _lock.acquire(blocking=False):
        try:
            for _ in range(len(_ended)):
                if not _end(_ended.popleft()):
                    return  # the next call tries again
        finally:
            _lock.release()


def figures() -> dict[str, int]:
    """For tests."""
    return {"sessions": len(_sessions), "regions": len(_regions), "storages": len(_received), "ended": len(_ended)}


def _session(address: str, pid: int) -> Session:
    session = _sessions.get(address)
    if session is None or session.ended:
        session = _sessions[address] = Session(address, pid)
    return session


def _open(session: Session, offer: int, number: int) -> torch.UntypedStorage:
    reply, _ = session.call(_RECEIVING, {"op": "open", "offer": offer})
    try:
        region = _region(session, reply)
        hold = Hold(region, session, reply["lease"])
        region.users += 1  # ends with the hold
    except BaseException:
        session.release(reply["lease"])
        raise
    storage = torch.from_dlpack(region.pages.dlpack(reply["offset"], reply["nbytes"], hold)).untyped_storage()
    hold.cdata = storage._cdata
    _received[hold.cdata] = session, reply["lease"], number
    reductions.shared_cache[("stillmap", session.address, number)] = StorageWeakRef(storage)
    return storage


def _region(session: Session, reply: dict[str, Any]) -> Region:
    key = session.address, reply["digest"]
    region = _regions.get(key)
    if region is not None:
        return region
    device = _native._device_of_uuid(bytes.fromhex(reply["uuid"]))
    if device is None:
        raise stillmap.NotSupportedError(
            f"{_RECEIVING}: it is on the device with UUID {reply['uuid']}, which this process does not see: add it to "
            "CUDA_VISIBLE_DEVICES")
    pages = _native._import_pages(device, reply["page_bytes"], reply["count"])
    try:
        _import(session, reply, pages)
        pages.map()
    except BaseException:
        pages.close()  # not later: the exception keeps it
        raise
    region = _regions[key] = Region(pages, device, key)
    return region


def _import(session: Session, reply: dict[str, Any], pages: Any) -> None:
    done = 0
    while done < reply["count"]:
        request = {"op": "pages", "lease": reply["lease"], "first": done}
        _, fds = session.call(_RECEIVING, request)
        try:
            if not fds:
                raise stillmap.Error(
                    f"{_RECEIVING}: this process can open no more files, and needs one for a page of the tensor: the "
                    f"limit is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}. Raise it (ulimit -n)")
            for fd in fds:
                pages.add(fd)
            done += len(fds)
        finally:
            for fd in fds:
                os.close(fd)


def _end(ended: tuple[Region, Session, int]) -> bool:
    """Under the lock. False: not now, because waiting for the device would invalidate the capture of a graph."""
    region, session, lease = ended
    try:
        if torch.cuda.is_current_stream_capturing():
            raise stillmap.BusyError("this thread captures a graph")
        # The sender may use the memory for something else once it has the lease.
        if region.users == 1:
            region.pages.close()
        else:
            _native._wait_idle(region.device)
    except stillmap.BusyError:
        _ended.append(ended)
        return False
    region.users -= 1
    if not region.users:
        del _regions[region.key]
    session.release(lease)
    return True


def _forget_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for session in _sessions.values():
        session.abandon()
    # Kept: a forked child unmaps nothing.
    _inherited.extend([dict(_sessions), dict(_regions)])
    for of in (_sessions, _regions, _received, _ended):
        of.clear()


os.register_at_fork(after_in_child=_forget_in_child)
