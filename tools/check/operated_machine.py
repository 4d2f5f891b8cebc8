"""A machine of hostcuda's with programs and the command, as Bazel builds them, for checks with other people's software."""
import contextlib
import os
import pathlib
import subprocess
import sys
import time

BUILT = pathlib.Path(__file__).resolve().parents[2] / "bazel-bin"
PATIENCE = 120  # seconds


def wait_for(what, question):
    """The first answer that is true."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            if answer := question():
                return answer
        time.sleep(0.1)
    sys.exit(f"{what} did not come in {PATIENCE} s")


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
