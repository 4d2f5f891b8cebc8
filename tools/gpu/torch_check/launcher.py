"""Starts worker processes and collects their answers, also when they crash or hang."""

import json
import os
import subprocess
import sys
import tempfile

import allocators

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
# What a worker may take over its time before it counts as hung: PyTorch from a cold disk, the
# device opened, a model built, the last step.
GRACE = 60


class WorkerFailed(Exception):
    def __init__(self, text, out_of_memory=False):
        super().__init__(text)
        self.out_of_memory = out_of_memory


class Launcher:
    """Loading PyTorch takes seconds and no device, so the next worker is started while one
    measures, and waits for its job. A context manager: at its end no worker is left."""

    def __init__(self, device, library, command=None):
        self.device, self.library = device, library
        self.command = command or [sys.executable, WORKER]
        self.spares = {}
        self.folder = tempfile.TemporaryDirectory(prefix="torch_check_")
        self.started = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.spares.values():
            worker.stop()
        self.folder.cleanup()

    def prepare(self, allocator):
        if allocator not in self.spares:
            self.started += 1
            place = os.path.join(self.folder.name, f"worker{self.started}")
            command = [*self.command, allocator, self.device, self.library]
            self.spares[allocator] = Worker(
                command, allocators.environment(allocator, os.environ), place
            )

    def ask(self, allocator, job, seconds, then=None):
        """The answer to a job, which may take `seconds`; `then` is the allocator of the next one.
        Raises WorkerFailed: out of memory, an exception, a crash, hung."""
        self.prepare(allocator)
        worker = self.spares.pop(allocator)
        if then:
            self.prepare(then)
        return worker.ask({**job, "seconds": seconds}, 3 * seconds + GRACE)


class Worker:
    def __init__(self, command, environment, place):
        self.place = place
        # A file and no pipe: one that is full would stop the worker.
        with open(place + ".log", "wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def ask(self, job, limit):
        answer = self.place + ".json"
        try:
            self.process.communicate(
                (json.dumps({**job, "answer": answer}) + "\n").encode(), timeout=limit
            )
        except subprocess.TimeoutExpired:
            self.stop()
            raise WorkerFailed(f"no answer after {limit:.0f} s{self.last_words()}") from None
        if not os.path.exists(answer):
            raise WorkerFailed(f"it ended with status {self.process.returncode}{self.last_words()}")
        with open(answer, encoding="utf-8") as file:
            said = json.load(file)
        if "error" in said:
            raise WorkerFailed(said["error"], said["out_of_memory"])
        if self.process.returncode != 0:
            raise WorkerFailed(
                f"measured, but its end had status {self.process.returncode}{self.last_words()}"
            )
        return said["result"]

    def last_words(self):
        with open(self.place + ".log", encoding="utf-8", errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""

    def stop(self):
        """Nothing is lost: it has got no job, or it hangs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
