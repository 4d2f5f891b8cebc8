"""The sender's side of CUDA tensors in torch.multiprocessing: keeps storages for other processes, and gives their pages.

A storage that is pickled gets an *offer*, whose number is in the message. The process that unpickles it turns the offer
into a *lease*, fetches the pages as file descriptors, and gives the lease back when it has no tensor of the storage any
more. The storage is kept meanwhile. A process that ends closes its connection, which gives its leases back.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import secrets
import select
import signal
import socket
import struct
import threading
import time
import warnings
from multiprocessing import util
from typing import Any

import stillmap
from stillmap import _native

MOST_FDS = 128  # in a message; the kernel's limit is 253
MOST_BYTES = 65536  # of a message
PACKET = socket.SOCK_SEQPACKET


class Shared:
    """A storage that other processes have, or are about to receive."""

    __slots__ = ("serial", "storage", "key", "users", "leases", "pages", "digest")

    def __init__(self, serial: int, storage: Any, key: tuple[int, int, int]) -> None:
        self.serial = serial
        self.storage = storage
        self.key = key
        self.users = 0  # offers and leases
        self.leases = 0
        self.pages: Any = None  # while there are leases
        self.digest = ""  # of the pages' numbers


class Peer:
    """The connection of a process that receives."""

    __slots__ = ("socket", "leases")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.leases: dict[int, Shared] = {}


class Server:
    """One for a process, with a thread, from the first tensor that it sends."""

    def __init__(self) -> None:
        # An abstract address: there is no file to remove. Only processes of the same user are answered.
        self.address = f"stillmap-tensors-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, PACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(b"\0" + self.address.encode())
        self._listener.listen(128)
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()  # of what follows
        self._shared: dict[tuple[int, int, int], Shared] = {}
        self._offers: dict[int, Shared] = {}
        self._serving = threading.Lock()  # before _lock; of the peers
        self._peers: dict[int, Peer] = {}
        self._events = select.epoll()  # which two threads may ask at once
        self._events.register(self._listener, select.EPOLLIN)
        # As multiprocessing's own threads: signals are the program's.
        old = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            threading.Thread(target=self._run, name="stillmap tensors", daemon=True).start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)

    def offer(self, storage: Any) -> tuple[int, int]:
        """The numbers of an offer and of the storage."""
        key = key_of(storage)
        with self._lock:
            shared = self._shared.get(key)
            if shared is None:
                shared = self._shared[key] = Shared(next(self._numbers), storage, key)
            return self._add_offer(shared), shared.serial

    def take_back(self, offer: int) -> Any:
        """The storage of an offer that came back to this process. None: there is none."""
        with self._lock:
            shared = self._offers.get(offer)
            storage = None if shared is None else shared.storage
        self._drop_offers([offer])
        return storage

    def refuse_shared(self, operation: str, tag: str, device: int) -> None:
        """Raises BusyError while other processes have tensors of the tag. What they gave back counts."""
        self.serve()
        with self._lock:
            those = [s for s in self._shared.values()
                     if s.pages is not None and s.pages.tag == tag and s.storage.device.index == device]
            nbytes = sum(s.storage.nbytes() for s in those)
        if those:
            raise stillmap.BusyError(
                f"{operation}: other processes have {len(those)} tensors of tag {tag!r} ({nbytes} bytes), which would "
                "keep the memory and no longer share it: delete them there first")

    def figures(self) -> dict[str, int]:
        """For tests."""
        self.serve()
        with self._lock:
            return {"storages": len(self._shared), "offers": len(self._offers),
                    "leases": sum(s.leases for s in self._shared.values()), "peers": len(self._peers)}

    def serve(self) -> None:
        """Answers what has arrived."""
        with self._serving:
            for fd, _ in self._events.poll(0):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._peers:
                    self._answer_all(self._peers[fd])

    def abandon(self) -> None:
        """In a forked child: the parent is the one that serves, and hears when a receiver's last descriptor closes."""
        for connected in (self._listener, *(peer.socket for peer in self._peers.values())):
            os.close(connected.detach())
        self._events.close()

    def _run(self) -> None:
        while True:
            self._events.poll()
            self.serve()

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            time.sleep(0.05)  # no descriptor is free: the receiver waits
            return
        _, uid, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (0, os.geteuid()):
            connected.close()
            return
        connected.setblocking(False)
        self._peers[connected.fileno()] = Peer(connected)
        self._events.register(connected, select.EPOLLIN)

    def _answer_all(self, peer: Peer) -> None:
        try:
            while True:
                text = peer.socket.recv(MOST_BYTES)
                if not text:
                    break
                self._answer(peer, json.loads(text))
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError):  # it has ended, or is something else
            pass
        self._events.unregister(peer.socket)
        del self._peers[peer.socket.fileno()]
        peer.socket.close()
        self._release(peer, list(peer.leases))

    def _answer(self, peer: Peer, request: dict[str, Any]) -> None:
        operation = request["op"]
        if operation == "end":
            self._release(peer, request["leases"])
            self._drop_offers(request["offers"])
            return
        fds: list[int] = []
        try:
            try:
                if operation == "open":
                    reply = self._open(peer, request["offer"])
                elif operation == "pages":
                    pages = peer.leases[request["lease"]].pages
                    fds = pages.fds(request["first"], MOST_FDS)
                    reply = {}
                else:
                    reply = {"offer": self._forward(peer, request["lease"])}
            except Exception as e:  # the receiver raises it
                reply = {"error": str(e), "kind": type(e).__name__}
            _reply(peer.socket, json.dumps({**reply, "id": request["id"]}).encode(), fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _open(self, peer: Peer, offer: int) -> dict[str, Any]:
        with self._lock:
            shared = self._offers.get(offer)
            if shared is None:
                raise stillmap.InvalidArgumentError("the message was received before: a message is for one receiver")
            try:
                if shared.key != key_of(shared.storage):
                    raise stillmap.InvalidArgumentError("the sender has resized the tensor's storage since it sent it")
                if shared.pages is None:
                    _, address, nbytes = shared.key
                    shared.pages = _native._export_pages(shared.storage.device.index, address, nbytes)
                    shared.digest = hashlib.sha256(shared.pages.ids).hexdigest()
                lease = next(self._numbers)
                pages = shared.pages
                reply = {"lease": lease, "page_bytes": pages.page_bytes, "offset": pages.offset, "count": pages.count,
                         "digest": shared.digest, "uuid": pages.uuid.hex(), "nbytes": shared.key[2]}
                peer.leases[lease] = shared
                shared.leases += 1
                shared.users += 1
            finally:
                self._drop_offers([offer])
        return reply

    def _forward(self, peer: Peer, lease: int) -> int:
        with self._lock:
            return self._add_offer(peer.leases[lease])

    def _add_offer(self, shared: Shared) -> int:
        offer = next(self._numbers)
        shared.users += 1
        self._offers[offer] = shared
        return offer

    def _drop_offers(self, offers: list[int]) -> None:
        with self._lock:
            unused = [self._unuse(self._offers.pop(offer)) for offer in offers if offer in self._offers]
        del unused  # without the lock

    def _release(self, peer: Peer, leases: list[int]) -> None:
        unused = []
        with self._lock:
            for lease in leases:
                shared = peer.leases.pop(lease, None)
                if shared is not None:
                    shared.leases -= 1
                    if not shared.leases:
                        unused.append(shared.pages)
                        shared.pages = None
                    unused.append(self._unuse(shared))
        while unused:
            unused.pop()

    def _unuse(self, shared: Shared) -> Any:
        shared.users -= 1
        if not shared.users and self._shared.get(shared.key) is shared:
            del self._shared[shared.key]
        return shared


def _reply(to: socket.socket, text: bytes, fds: list[int]) -> None:
    """With fewer of the descriptors where the kernel has too many of this user on their way: the receiver asks again."""
    while True:
        try:
            socket.send_fds(to, [text], fds)
            return
        except BlockingIOError as e:
            raise ConnectionError("the receiver does not read") from e
        except OSError as e:
            if e.errno != errno.ETOOMANYREFS or len(fds) < 2:
                raise
            fds = fds[:len(fds) // 2]


def key_of(storage: Any) -> tuple[int, int, int]:
    """A storage with its memory, which resize_() exchanges."""
    return storage._cdata, storage.data_ptr(), storage.nbytes()


_making = threading.Lock()
_server: Server | None = None
_inherited: list[Server] = []  # never dropped: a forked child frees nothing on a device


def server() -> Server:
    global _server
    with _making:
        if _server is None:
            _server = Server()
        return _server


def known_server() -> Server | None:
    return _server


def warn_at_exit() -> None:
    """Of tensors that nobody has received. After the feeder threads of queues, which end with -5, and may only then
    send the first one."""
    util.Finalize(None, _warn_of_offers, exitpriority=-20)


def _warn_of_offers() -> None:
    lost = 0 if _server is None else _server.figures()["offers"]
    if lost:
        warnings.warn(
            f"torch.multiprocessing: this process ends, and {lost} CUDA tensors that it sent were not received yet: "
            "receiving them will fail. Keep it alive until the receivers have them", RuntimeWarning, stacklevel=2)


def _forget_in_child() -> None:
    global _server, _making
    _making = threading.Lock()
    if _server is not None:
        _server.abandon()
        _inherited.append(_server)
        _server = None


os.register_at_fork(after_in_child=_forget_in_child)
