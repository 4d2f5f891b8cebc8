"""Programs that go on while a test operates them from other processes, by the command `stillmap task`."""

import json
import os
import queue
import subprocess
import sys
import textwrap
import threading
import time

from stillmap.__main__ import find_command
from support import TestCase

# What each program begins with. Its memory, whose bytes say in which step they were written.
BEGIN = """
import atexit, os, signal, sys, threading, time
import stillmap
MiB = 1 << 20
weights = stillmap.GrowableBuffer(8 * MiB, tag="weights", hint=0x3300_0000_0000)
def tell(*words):
    print(*words, flush=True)
def free():
    return stillmap.device_info()["free_bytes"]
steps = 0
def step():
    global steps
    if steps:
        assert weights.copy_to_host() == bytes([steps % 251]) * (8 * MiB), steps
    steps += 1
    weights.copy_from_host(bytes([steps % 251]) * (8 * MiB))
def loop(until=lambda: False, at=stillmap.safe_point):
    while not until():
        step()
        at()
"""


class Program:
    """A Python program that goes on while the test asks it things."""

    def __init__(self, test, code, *arguments, prefix=(), **environment):
        options = ["-X", "faulthandler", "-W", "ignore:This process:DeprecationWarning"]
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *options, "-c", code, *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment})
        self.test, self.pid, self.lines, self.errors = test, self.process.pid, queue.Queue(), []
        self.readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self.readers:
            reader.start()
        test.addCleanup(self._end)

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def _read_errors(self):
        self.errors.extend(self.process.stderr)

    def _end(self):
        self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join()
        for file in (self.process.stdin, self.process.stdout, self.process.stderr):
            file.close()

    def line(self, timeout=20):
        try:
            said = self.lines.get(timeout=timeout)
        except queue.Empty:
            said = None
        if said is None:
            self.test.fail("the program says nothing: " + "".join(self.errors))
        return said

    def say(self, text="go"):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def wait(self, expect=0, timeout=20, quiet=True):
        """Until it has ended by itself. Returns what it wrote to stderr."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.test.fail("the program does not end: " + "".join(self.errors))
        for reader in self.readers:
            reader.join()
        said = "".join(self.errors)
        self.test.assertEqual(code, expect, said)
        if quiet:
            self.test.assertEqual(said, "")
        return said


class OperatorTestCase(TestCase):
    def task(self, *arguments, expect=0, timeout=60):
        """`stillmap task ...` in another process. Its results; with another exit status than 0, its message."""
        done = subprocess.run([find_command(), "task", *arguments, *(["--json"] if expect == 0 else [])],
                              capture_output=True, text=True, timeout=timeout)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        if expect:
            return done.stdout + done.stderr
        # A snapshot also reports its progress.
        return json.loads(done.stdout) if done.stdout.strip() else None

    def start_task(self, *arguments):
        process = subprocess.Popen([find_command(), "task", *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def until(self, condition, seconds=20):
        by = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), by, "it does not happen")
            time.sleep(0.01)

    def job(self, address):
        return self.task("status", address).get("request")

    def suspended_bytes(self, address):
        return sum(tag["suspended_bytes"] for tag in self.task("status", address)["tags"])


class ControlTestCase(OperatorTestCase):
    def program(self, code, **environment):
        return Program(self, BEGIN + textwrap.dedent(code), **environment)
