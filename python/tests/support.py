"""What the tests of the Python package share: child processes, and calls of the driver by ctypes."""

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
import time
import textwrap
import unittest
import uuid

import stillmap

MiB = 1 << 20


@functools.lru_cache(maxsize=None)
def device():
    return stillmap.device_info()


def needs_vmm(test):
    """Skips a case, or a class, where pages cannot be mapped."""
    return unittest.skipUnless(device()["vmm"], "the device has no virtual memory management")(test)


def numpy_or_skip():
    try:
        import numpy
    except ImportError:
        raise unittest.SkipTest("NumPy is not installed") from None
    return numpy


class TestCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def eventually(self, holds, seconds=20):
        until = time.monotonic() + seconds
        while not holds():
            self.assertLess(time.monotonic(), until)
            time.sleep(0.005)

    def assertRaisesSaying(self, kind, text, call, *arguments, **options):
        with self.assertRaises(kind) as raised:
            call(*arguments, **options)
        self.assertIn(text, str(raised.exception))
        return raised.exception

    def one_machine(self, *settings):
        """HOSTCUDA for processes that have one simulated machine together: the same one in all of a test."""
        if not hasattr(self, "_machine"):
            self._machine = "python-" + uuid.uuid4().hex
            left = "/dev/shm/hostcuda.%d.%s" % (os.getuid(), self._machine)
            self.addCleanup(lambda: os.path.exists(left) and os.unlink(left))
        return ",".join(filter(None, [os.environ.get("HOSTCUDA", ""), *settings, "machine=" + self._machine]))

    def run_python(self, code, *arguments, expect=0, timeout=60, quiet=True, cwd=None, **environment):
        """Runs code in a new process; returns its output. Fails if it says more than it should (quiet)."""
        # From 3.12 on Python warns of fork() in a process with threads, and hostcuda has some.
        options = ["-X", "faulthandler", "-W", "ignore:This process:DeprecationWarning"]
        done = subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(code), *map(str, arguments)],
            capture_output=True, text=True, timeout=timeout, cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment})
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        if quiet:
            self.assertEqual(done.stderr, "", done.stdout)
        return done.stdout


class Driver:
    """hostcuda itself: work that the tests queue, and bytes they write and read."""

    def __init__(self):
        self.library = ctypes.CDLL(device()["driver_path"])
        self.library.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError("%s returned %d" % (name, status))

    def enter(self):
        """Makes the context current on this thread."""
        self.call("cuCtxSetCurrent", self.context)

    def stream(self):
        self.enter()
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), 1)
        return made.value

    def destroy(self, stream):
        self.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def write(self, address, data):
        self.enter()
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address, nbytes):
        self.enter()
        room = ctypes.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoH_v2", room, ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        return room.raw

    def queue_gate(self, stream):
        """Queues work that lasts until open() of the result is called. It needs no GIL."""
        self.enter()
        gate = Gate()
        self.library.cuLaunchHostFunc(stream, gate.wait_address, gate.address)
        return gate


class Gate:
    """A semaphore of the C library."""

    def __init__(self):
        self.libc = ctypes.CDLL(None)
        self.memory = ctypes.create_string_buffer(64)
        self.libc.sem_init(self.memory, 0, 0)
        self.address = ctypes.cast(self.memory, ctypes.c_void_p).value
        self.wait_address = ctypes.cast(self.libc.sem_wait, ctypes.c_void_p).value

    def open(self):
        self.libc.sem_post(self.memory)


@functools.lru_cache(maxsize=None)
def driver():
    return Driver()
