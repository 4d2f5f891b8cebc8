"""A loop that an operator suspends, saves and resumes from a shell."""

import os
import subprocess
import tempfile
import threading

import stillmap
from stillmap.__main__ import find_command


def operate(address, over):
    """What somebody does in a shell."""
    def task(*arguments):
        print("$ stillmap task", *arguments)
        subprocess.run([find_command(), "task", *arguments], check=True)

    task("status", address)
    task("suspend", address, "weights")
    task("status", address)
    task("resume", address, "weights")
    task("snapshot", address, "--all", "-o", os.path.join(tempfile.mkdtemp(), "weights.smi"))
    over.set()


def main():
    over = threading.Event()
    # [serve]
    weights = stillmap.GrowableBuffer(64 << 20, tag="weights", hint=0x240000000000)
    server = stillmap.serve()  # `stillmap task list` finds it
    # [/serve]
    threading.Thread(target=operate, args=(server.address, over)).start()
    # [loop]
    step = 0
    while not over.is_set():
        step += 1
        weights.copy_from_host(b"%8d" % step)  # a step of work
        assert weights.copy_to_host(8) == b"%8d" % step
        stillmap.safe_point()  # here a request may have the memory
    # [/loop]
    print(step > 0 and "every step found its bytes")


if __name__ == "__main__":
    main()
