#!/usr/bin/env python3
"""Runs docs/operators_guide.md as its reader does, and compares what is printed.

    tools/check/guide.py [--fix] [PAGE]

One shell runs the commands of the page, in its order, on a machine of hostcuda's, with a network, process ids and
/dev/shm of its own. In a block, a line `$ COMMAND` (continued after `\\`) is a command, and the lines up to the next
one are all that it prints, on stdout and stderr, and it ends with status 0. A row of a table that begins with a command
and a number is a command that ends with this status; it is run where it stands.

What differs from run to run is VARIES; a line `...` stands for any lines, and `...` in a line for any text. Where a
command has a fingerprint or an id of a task that an earlier one printed, the one of this run is taken. The next command
waits until one in the background has written to its file. `./train` and `./serve` are a program of the tests.

--fix writes into the page what was printed, where that differs. Needs root (unshare), curl, pkill, and the command and
the tests' programs as Bazel builds them.
"""
import contextlib
import fcntl
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile

from operated_machine import BUILT, Machine, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operators_guide.md"
SHOWN_FOLDER = "/tmp/guide/"  # in place of the one in which the commands run
TIME_LIMIT = 30  # seconds of a command

# What no two runs have in common, and what stands for it when a page is compared. The order counts.
VARIES = [
    (r"^\[\d+\].*$", ""),  # the shell, of a job
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+Z| UTC)?", "TIME"),
    (r'("milliseconds": )\d+(\.\d+)?', r"\1MILLISECONDS"),
    (r"\b\d+(\.\d+)? (ms|s|min)\b", "DURATION"),
    (r"\b[0-9a-f]{32,64}\b", "HEX"),
    (r"(@stillmap-)\d+", r"\1PID"),
    (r'(process |"pid": |"client_pid": |pid=")\d+', r"\1PID"),
    (r"^ *\d+(?=  )", "PID"),  # the first column of a table
    (r"(?<=control) +\d+ ", " PID "),  # the second one
    (r"(?<=from here \(127\.0\.0\.1:)\d+", "PORT"),
    (r" +", " "),
]
NAMED = re.compile(r"\b[0-9a-f]{32,64}\b")  # what a command repeats of an earlier output
LOG = re.compile(r">(\S+)(?: 2>&1)? &$")

COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<printed>(?:(?!\$ |```).*\n)*)", re.M)
ROW = re.compile(r"^\| `(?P<row>stillmap [^`]*)` \| (?P<status>\d+) \|", re.M)
STEP = re.compile(r"(?:%s)|(?:%s)" % (COMMAND.pattern, ROW.pattern), re.M)


def compared(text):
    """A text of which every run has the same."""
    for pattern, name in VARIES:
        text = re.sub(pattern, name, text, flags=re.M)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def is_printed(quoted, printed):
    """Whether the page may quote this of what was printed."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
                      for line in compared(quoted).splitlines())
    return re.fullmatch(pattern, compared(printed) + "\n" if printed.strip() else "") is not None


class Shell:
    """A shell that goes on from one command to the next. Its jobs read from a pipe that says nothing."""

    LOOP = r"""set -m
while IFS= read -r -d '' -u 3 line; do eval "$line"; printf '\0%d\0' $?; done"""

    def __init__(self, stack, environment, folder):
        read, self.commands = os.pipe()
        self.folder = folder
        # The first process of a namespace gets no signal without a handler.
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"guide: `{self.current}` takes more than {TIME_LIMIT} s"))
        self.process = subprocess.Popen(["bash", "-c", self.LOOP + f" 3<&{read}"], cwd=folder, env=environment,
                                        pass_fds=[read], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)
        os.close(read)
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)

    def read_part(self):
        out = bytearray()
        while (byte := self.process.stdout.read(1)) not in (b"\0", b""):
            out += byte
        return out.decode()

    def run(self, command):
        """The status and what is printed until the command has ended."""
        self.current = command
        signal.alarm(TIME_LIMIT)
        os.write(self.commands, command.encode() + b"\0")
        printed, status = self.read_part(), self.read_part()
        signal.alarm(0)
        if log := LOG.search(command):
            wait_for(f"a line in {log[1]}", (self.folder / log[1]).read_text, TIME_LIMIT)
        return int(status or -1), printed.replace(f"{self.folder}/", SHOWN_FOLDER)


class Reader:
    """Follows a page, and writes down what happened."""

    def __init__(self, run):
        self.run, self.names, self.wrong = run, {}, []

    def names_of_this_run(self, text):
        return NAMED.sub(lambda found: self.names.get(found[0], found[0]), text)

    def row(self, command, status):
        ended, printed = self.run(self.names_of_this_run(command))
        if ended != int(status):
            self.wrong.append(f"`{command}` ends with status {ended}:\n{printed}")
        return f"| `{command}` | {ended} |"

    def command(self, command, quoted):
        ours = self.names_of_this_run(command)
        ended, printed = self.run(ours.replace("\\\n", ""))
        if ended != 0:
            self.wrong.append(f"`{command}` ends with status {ended}")
        if is_printed(quoted, printed):
            self.names.update(zip(NAMED.findall(quoted), NAMED.findall(printed)))
            return f"$ {command}\n{quoted}"
        self.wrong.append(f"`{command}` prints:\n{printed}")
        return f"$ {command}\n{''.join(line for line in printed.splitlines(True) if compared(line))}"

    def follow(self, page):
        """The page with what its commands print."""
        return STEP.sub(lambda found: self.row(found["row"], found["status"]) if found["row"]
                        else self.command(found["command"], found["printed"]), page)


def enter_machine():
    """Goes on in namespaces of its own; what is started there ends with them."""
    if os.environ.get("STILLMAP_CHECK_NAMESPACE") is None:
        os.execvpe("unshare", ["unshare", "--net", "--mount", "--propagation", "private", "--pid", "--fork",
                               "--kill-child", "--mount-proc", sys.executable, *sys.argv],
                   {**os.environ, "STILLMAP_CHECK_NAMESPACE": "1"})
    subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)
    with socket.socket() as any_socket:  # SIOCSIFFLAGS: IFF_UP
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))


def main():
    words = sys.argv[1:]
    fix = "--fix" in words
    names = [word for word in words if word != "--fix"]
    if len(names) > 1 or any(name.startswith("-") for name in names):
        sys.exit(__doc__)
    path = pathlib.Path(names[0]).resolve() if names else PAGE
    enter_machine()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="guide-")))
        for name in ("train", "serve"):
            (folder / name).symlink_to(BUILT / "tests" / "preload_operated")
        machine = Machine(stack, "guide")
        environment = {**machine.environment, "LC_ALL": "C.UTF-8", "TZ": "UTC", "STILLMAP_DRIVER": "host",
                       "PATH": f"{BUILT / 'tools'}:{os.environ['PATH']}",
                       "STILLMAP_HOSTCUDA": str(BUILT / "hostcuda" / "libcuda.so.1"),
                       "STILLMAP_PRELOAD_LIBRARY": str(BUILT / "preload" / "libstillmap_preload.so")}
        page = path.read_text(encoding="utf-8")
        reader = Reader(Shell(stack, environment, folder).run)
        fixed = reader.follow(page)
        if fix:
            path.write_text(fixed, encoding="utf-8")
    for what in reader.wrong:
        print(f"{path.name}: {what}")
    count = sum(1 for _ in STEP.finditer(page))
    print(f"guide: {count} commands, {len(reader.wrong)} problems")
    sys.exit(1 if reader.wrong or not count else 0)


if __name__ == "__main__":
    main()
