#!/usr/bin/env python3
"""Records `stillmap top` with twelve tasks on two devices: the screens as text and as pictures, and what it costs.

    unshare --net tools/top_session.py FOLDER

The tasks are programs that nobody changed, on a machine of hostcuda's with two devices of an H200: some work, two are
suspended, one waits for memory of a shared quota, one is stopped by a signal, and one program has no Stillmap. Keys are
pressed as a person would. Then the processor time of `top` is measured, with 12 and 100 tasks that rest. In a network
namespace of its own, because `top` finds every task of the machine. Needs pyte from PyPI, and the command and the
tests' programs as Bazel builds them.
"""
import contextlib
import fcntl
import html
import os
import pathlib
import pty
import signal
import struct
import sys
import tempfile
import termios
import threading
import time

import pyte

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "check"))
from operated_machine import BUILT, Machine, wait_for  # noqa: E402

LINES, COLUMNS = 24, 144
PRELOAD = BUILT / "preload" / "libstillmap_preload.so"
TOP = BUILT / "tools" / "stillmap"


class Terminal:
    """`stillmap top` on a terminal of its own."""

    def __init__(self, stack, environment):
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.lock = threading.Lock()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(TOP, ["stillmap", "top"], {**environment, "TERM": "linux", "LC_ALL": "C.UTF-8"})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        threading.Thread(target=self.read, daemon=True).start()
        stack.callback(self.end)

    def read(self):
        with contextlib.suppress(OSError):
            while text := os.read(self.fd, 1 << 16):
                with self.lock:
                    self.stream.feed(text)

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def end(self):
        self.press("q")
        os.waitpid(self.pid, 0)

    def lines(self):
        with self.lock:
            return [line.rstrip() for line in self.screen.display]

    def wait_for(self, text):
        wait_for(f"'{text}' on the screen", lambda: any(text in line for line in self.lines()))

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def picture(self):
        """The screen as SVG."""
        width, height = 7.8, 17
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * width + 20:.0f} {LINES * height + 16}">'
               '<rect width="100%" height="100%" fill="#14171c"/>'
               '<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">']
        with self.lock:
            for y in range(LINES):
                row = [self.screen.buffer[y][x] for x in range(COLUMNS)]
                text = "".join(c.data for c in row).rstrip()
                if not text:
                    continue
                first = row[len(text) - len(text.lstrip())]
                fill, style = "#c8ccd4", ""
                if first.reverse:
                    out.append(f'<rect x="0" y="{y * height + 8}" width="100%" height="{height}" fill="#c8ccd4"/>')
                    fill = "#14171c"
                if first.bold:
                    style = ' font-weight="bold"'
                if first.underscore:
                    style += ' text-decoration="underline"'
                out.append(f'<text x="10" y="{(y + 1) * height + 3}" fill="{fill}"{style} '
                           f'textLength="{len(text) * width:.1f}">{html.escape(text)}</text>')
        return "\n".join(out) + "\n</g></svg>\n"


class Session:
    """The screens that were recorded."""

    def __init__(self, folder, terminal):
        self.folder, self.terminal, self.text = folder, terminal, []

    def keep(self, title, picture=None):
        self.text += [f"=== {title}", *self.terminal.lines(), ""]
        if picture:
            (self.folder / f"{picture}.svg").write_text(self.terminal.picture(), encoding="utf-8")

    def write(self):
        (self.folder / "top_session.txt").write_text("\n".join(line.rstrip() for line in self.text) + "\n",
                                                     encoding="utf-8")


def start(machine, names, name, device, job, preload=True, **more):
    program = names / name
    if not program.exists():
        program.symlink_to(BUILT / "tests" / "preload_operated")
    variables = {"SLURM_JOB_ID": str(job), **more}
    if preload:
        variables |= {"STILLMAP_PRELOAD_CONTROL": "1", "LD_PRELOAD": str(PRELOAD)}
    process = machine.start([program, "1", device], **variables)
    assert process.stdout.readline().startswith("ready"), name
    return process


def tell(process, command):
    process.stdin.write(command + "\n")
    process.stdin.flush()


def ask(process, command):
    tell(process, command)
    return process.stdout.readline().strip()


def start_tasks(machine, names):
    share = {"STILLMAP_PRELOAD_SHARE": f"top-{os.getpid()}:1GiB"}
    tasks = []
    for i in range(12):
        device, name = i % 2, ("train", "train", "serve", "eval")[i // 3]
        more = share if name == "serve" and device == 0 else {}
        tasks.append(start(machine, names, name, device, 811 + i // 4, **more))
    start(machine, names, "stranger", 1, "", preload=False)
    for i, task in enumerate(tasks):
        assert ask(task, f"allocate {20 + 17 * i}") == "ok"
        assert i % 3 or ask(task, "work") == "ok"
    return tasks


def record(folder):
    with contextlib.ExitStack() as stack:
        names = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        machine = Machine(stack, "top", "multi:2")
        tasks = start_tasks(machine, names)
        terminal = Terminal(stack, machine.environment)
        session = Session(folder, terminal)
        terminal.wait_for("12 tasks")
        time.sleep(3)
        session.keep("12 tasks on two devices, four of them at work", "top_at_work")
        machine.run("task", "suspend", tasks[1].pid, "--all")
        machine.run("task", "suspend", tasks[3].pid, "--all")
        tasks[10].send_signal(signal.SIGSTOP)
        tell(tasks[8], "allocate 400")  # waits for the others of the quota
        terminal.wait_for("waits for")
        terminal.wait_for("no answer")
        session.keep("two are suspended, one waits in a shared quota, one was stopped by a signal", "top_in_trouble")
        terminal.press(">")
        terminal.wait_for("by live")
        session.keep("> was pressed: another order")
        terminal.press("jj\n")
        terminal.wait_for("any key: back")
        session.keep("j, j, Enter: all about one task", "top_details")
        terminal.press("x")
        terminal.wait_for("q leave")
        terminal.press("s")
        terminal.wait_for("y: yes")
        session.keep("s: asks first")
        terminal.press("y")
        terminal.wait_for("suspended of")
        session.keep("y: suspended")
        terminal.press("r")
        terminal.wait_for("resumed of")
        session.keep("r: resumed")
        tasks[10].send_signal(signal.SIGCONT)
        session.write()


RESTING = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
context, block = ctypes.c_void_p(), ctypes.c_uint64()
for failed in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(sys.argv[1])),
               driver.cuCtxSetCurrent(context), driver.cuMemAlloc_v2(ctypes.byref(block), 8 << 20)):
    assert not failed, failed
print("ready", flush=True)
sys.stdin.read()
"""


def measure(count, seconds=60):
    with contextlib.ExitStack() as stack:
        machine = Machine(stack, "top", "multi:2")
        for i in range(count):
            task = machine.start([sys.executable, "-c", RESTING, i % 2], STILLMAP_PRELOAD_CONTROL="1",
                                 LD_PRELOAD=str(PRELOAD))
            assert task.stdout.readline() == "ready\n"
        terminal = Terminal(stack, machine.environment)
        terminal.wait_for(f"{count} tasks")
        time.sleep(3)
        before, began = terminal.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        share = (terminal.cpu_seconds() - before) / (time.monotonic() - began)
        print(f"{count} tasks, once a second: {100 * share:.2f} % of a core")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    record(pathlib.Path(sys.argv[1]))
    measure(12)
    measure(100)


if __name__ == "__main__":
    main()
