"""A machine of hostcuda's with programs and the command, as Bazel builds them, for checks with other people's software."""
import contextlib
import os
import pathlib
import socket
import subprocess
import time

BUILT = pathlib.Path(__file__).resolve().parents[2] / "bazel-bin"
PATIENCE = 120  # seconds


class Failed(SystemExit):
    """Ends a check that does not catch it, with its text."""


def wait_for(what, question, patience=PATIENCE):
    """The first answer that is true."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            if answer := question():
                return answer
        time.sleep(0.02)
    raise Failed(f"{what} did not come in {patience} s")


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


class Machine:
    """Programs on a machine of hostcuda's, and the command beside them."""

    def __init__(self, stack, name, profile="h200"):
        self.stack = stack
        folders = [BUILT / "hostcuda", BUILT / "hostcuda" / "nvml"]
        self.environment = {**os.environ, "HOSTCUDA": f"profile={profile},machine={name}-{os.getpid()}",
                            "LD_LIBRARY_PATH": ":".join(map(str, folders))}

    def start(self, words, **more):
        process = subprocess.Popen([str(word) for word in words], env={**self.environment, **more}, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def start_program(self, **more):
        program = self.start([BUILT / "tests" / "preload_operated", "1"], STILLMAP_PRELOAD_CONTROL="1",
                             LD_PRELOAD=str(BUILT / "preload" / "libstillmap_preload.so"), **more)
        assert program.stdout.readline().startswith("ready"), "a program did not start"
        return program

    def run(self, *words):
        done = subprocess.run([BUILT / "tools" / "stillmap", *map(str, words)], env=self.environment, text=True,
                              check=True, stdout=subprocess.PIPE)
        return done.stdout
