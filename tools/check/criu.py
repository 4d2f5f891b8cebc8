#!/usr/bin/env python3
"""CRIU's plugin of Stillmap suspends the memory of tasks before a dump, and resumes it after the dump or the restore.

    tools/check/criu.py [CASE...]

Builds tools/criu with the header of the CRIU that is installed (CRIU_INCLUDE_DIR: another), and plays CRIU's part for the
plugin: programs that nobody changed, on hostcuda, are "dumped" and "restored". Where CRIU itself works on this kernel
(STILLMAP_CRIU: another than the installed one), it dumps and restores a program, too. Needs root, the header, and the
command and the tests' programs as Bazel builds them.
"""
import contextlib
import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from operated_machine import BUILT, Failed, Machine, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
DUMP, RESTORE = 0, 2  # stages
RESUME_LATE, PAUSE = 9, 10  # hooks
NOT_OURS = -errno.ENOTSUP  # what lets CRIU go on with other plugins
COMMAND = str(BUILT / "tools" / "stillmap")
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def expect(condition, what):
    if not condition:
        raise Failed(str(what))


class Plugin:
    """A CRIU that dumps or restores."""

    def __init__(self, test, *words, **variables):
        self.process = test.machine.start([test.build / "criu_host", test.build / "stillmap_plugin.so", test.images, *words],
                                          **{"STILLMAP_CRIU_COMMAND": COMMAND, **variables})
        self.log = []

    def call(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            expect(line, f"the plugin ended CRIU in {words}: {self.log}")
            if line.startswith("= "):
                return int(line[2:])
            self.log.append(line.strip())


class Test:
    """Folders, a machine, and programs on it."""

    def __init__(self, stack, build):
        self.stack = stack
        self.build = build
        self.machine = Machine(stack, "criu")
        self.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stillmap-criu-")))
        self.images = self.folder / "images"
        self.images.mkdir()

    def start_program(self, *before, **more):
        program = self.machine.start([*before, BUILT / "tests" / "preload_operated", "1"],
                                     **{"STILLMAP_PRELOAD_CONTROL": "1", **more},
                                     LD_PRELOAD=str(BUILT / "preload" / "libstillmap_preload.so"))
        expect(program.stdout.readline().startswith("ready"), "a program did not start")
        return program

    def bytes_of(self, task):
        """Mapped and suspended."""
        tags = json.loads(self.machine.run("task", "status", "--json", task))["tags"]
        return sum(tag["mapped_bytes"] for tag in tags), sum(tag["suspended_bytes"] for tag in tags)

    def expect_suspended(self, task):
        mapped, suspended = self.bytes_of(task)
        expect(mapped == 0 and suspended != 0, f"{task}: {mapped} B are mapped, {suspended} B suspended")

    def wait_until_resumed(self, task):
        wait_for("the resume", lambda: self.bytes_of(task)[0] != 0, 20)
        expect(self.bytes_of(task)[1] == 0, "not all is resumed")

    def image(self):
        path = self.images / "stillmap.img"
        return path.read_text(encoding="utf-8").split() if path.exists() else None


def ask(program, command):
    program.stdin.write(command + "\n")
    program.stdin.flush()
    return program.stdout.readline().strip()


def expect_right(program):
    expect(ask(program, "constant") == "right", "the memory has other bytes")


@contextlib.contextmanager
def stopped(pid):
    """As CRIU has the processes that it dumps."""
    os.kill(pid, signal.SIGSTOP)
    wait_for("its stop", lambda: "\nState:\tT" in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@case
def leaves_running(test):
    """A dump after which the task goes on."""
    program = test.start_program()
    expect(ask(program, "work") == "ok", "no work")
    plugin = Plugin(test, "-t", program.pid)
    expect(plugin.call("init", DUMP) == 0, plugin.log)
    test.expect_suspended(program.pid)
    expect(test.image() == [f"@stillmap-{program.pid}.control"], test.image())
    with stopped(program.pid):
        plugin.call("exit", DUMP, 0)
    test.wait_until_resumed(program.pid)
    expect_right(program)


@case
def restores(test):
    """A restore resumes what its dump has suspended, once CRIU lets the processes run; so does a failed dump."""
    program = test.start_program()
    dump = Plugin(test, "dump", "--tree", program.pid)
    expect(dump.call("init", DUMP) == 0, dump.log)
    restore = Plugin(test)
    with stopped(program.pid):
        expect(restore.call("init", RESTORE) == 0, restore.log)
        expect(restore.call("hook", RESUME_LATE, os.getpid()) == NOT_OURS, restore.log)
        expect(not restore.log, restore.log)
        expect(restore.call("hook", RESUME_LATE, program.pid) == NOT_OURS, restore.log)
        expect(any("is resumed once its process runs" in line for line in restore.log), restore.log)
    test.wait_until_resumed(program.pid)
    restore.call("exit", RESTORE, 0)
    expect_right(program)
    again = Plugin(test, f"-t{program.pid}")
    expect(again.call("init", DUMP) == 0, again.log)
    again.call("exit", DUMP, -1)
    expect(test.image() is None, "a dump that failed has an image")
    test.wait_until_resumed(program.pid)


@case
def strangers(test):
    """Processes without a control socket, with one of another name, and one that an operator has suspended."""
    other = test.machine.start(["sleep", "1000"])
    plugin = Plugin(test, "-t", other.pid)
    expect(plugin.call("init", DUMP) == 0 and not plugin.log, plugin.log)
    expect(plugin.call("hook", PAUSE, other.pid) in (NOT_OURS, 1), plugin.log)
    plugin.call("exit", DUMP, 0)
    expect(test.image() is None, "an image without a task")
    program = test.start_program()
    test.machine.run("task", "suspend", program.pid, "--all")
    plugin = Plugin(test, "-t", program.pid)
    expect(plugin.call("init", DUMP) == 0 and not plugin.log, plugin.log)
    plugin.call("exit", DUMP, 0)
    expect(test.image() is None, "an image of what an operator has suspended")
    time.sleep(0.5)
    test.expect_suspended(program.pid)


@case
def silent(test):
    """A task that does not answer: the dump fails in bounded time, and says what to do. The task keeps its memory."""
    program = test.start_program()
    before = test.bytes_of(program.pid)
    plugin = Plugin(test, "-t", program.pid, STILLMAP_CRIU_TIMEOUT="2")
    began = time.monotonic()
    with stopped(program.pid):
        expect(plugin.call("init", DUMP) == -1, plugin.log)
    took = time.monotonic() - began
    expect(2 <= took < 2 * 2 + 10, f"the dump failed after {took:.1f} s")
    expect(any(f"1 stillmap: the device memory of process {program.pid} cannot be suspended, so it is not dumped" in line
               and "no answer in 2 s" in line and "STILLMAP_CRIU_TIMEOUT (2 s)" in line for line in plugin.log), plugin.log)
    print(f"  after {took:.1f} s: {plugin.log[-1]}")
    expect(test.image() is None, "a dump that failed has an image")
    time.sleep(0.5)
    expect(test.bytes_of(program.pid) == before, f"{test.bytes_of(program.pid)} instead of {before}")


@case
def without_tree(test):
    """A CRIU that was told by another program what to dump: from 4.0 on it says so before it stops a process."""
    program = test.start_program()
    plugin = Plugin(test)
    expect(plugin.call("init", DUMP) == 0, plugin.log)
    paused = plugin.call("hook", PAUSE, program.pid)
    if paused == 1:
        expect("STILLMAP_CRIU_TREE names it" in plugin.log[0], plugin.log)
        plugin = Plugin(test, STILLMAP_CRIU_TREE=str(program.pid))
        expect(plugin.call("init", DUMP) == 0, plugin.log)
    else:
        expect(paused == NOT_OURS and plugin.log, plugin.log)
    test.expect_suspended(program.pid)
    plugin.call("exit", DUMP, 0)
    test.wait_until_resumed(program.pid)


@case
def not_resumed(test):
    """A task that stays stopped after a dump: a file says so. A restore resumes it, also if CRIU asks another plugin."""
    program = test.start_program()
    plugin = Plugin(test, "-t", program.pid, STILLMAP_CRIU_TIMEOUT="1")
    expect(plugin.call("init", DUMP) == 0, plugin.log)
    with stopped(program.pid):
        plugin.call("exit", DUMP, 0)
        text = wait_for("the log", (test.images / "stillmap-resume.log").read_text, 20)
    print(f"  {text.strip()}")
    expect(f"@stillmap-{program.pid}.control is not resumed: " in text
           and "`stillmap task resume` brings it back" in text, text)
    test.expect_suspended(program.pid)
    restore = Plugin(test)
    expect(restore.call("init", RESTORE) == 0, restore.log)
    restore.call("exit", RESTORE, 0)
    test.wait_until_resumed(program.pid)
    expect_right(program)


@case
def one_fails(test):
    """Of two processes one does not answer: the other has its memory back."""
    with contextlib.ExitStack() as stack:
        first, second = test.start_program(), test.start_program()
        # One tree, with a process above both.
        plugin = Plugin(test, "-t", os.getpid(), STILLMAP_CRIU_TIMEOUT="1")
        stack.enter_context(stopped(second.pid))
        expect(plugin.call("init", DUMP) == -1, plugin.log)
        test.wait_until_resumed(first.pid)
    expect_right(first)
    expect_right(second)


@case
def containers(test):
    """Two containers with namespaces of their own, in which processes have the same id and the same address."""
    unshare = ["unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child"]
    outer = [test.start_program(*unshare), test.start_program(*unshare)]
    folder = test.folder / "sockets"
    folder.mkdir()
    outer.append(test.start_program(*unshare, STILLMAP_PRELOAD_CONTROL=f"{folder}/"))
    inner = [int(pathlib.Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text(encoding="utf-8")) for p in outer]
    # The network namespace's view of those with abstract names.
    def mapped(i):
        words = ["nsenter", "-t", str(inner[i]), "-n"] if i < 2 else []
        address = "@stillmap-1.control" if i < 2 else folder / "stillmap-1.control"
        done = subprocess.run([*words, BUILT / "tools" / "stillmap", "task", "status", "--json", address], check=True,
                              env=test.machine.environment, text=True, stdout=subprocess.PIPE)
        return sum(tag["mapped_bytes"] for tag in json.loads(done.stdout)["tags"])

    plugin = Plugin(test, "-t", os.getpid())
    expect(plugin.call("init", DUMP) == 0, plugin.log)
    expect([mapped(i) for i in range(3)] == [0, 0, 0], [mapped(i) for i in range(3)])
    expect(sorted(test.image()) == [str(folder / "stillmap-1.control"), *["@stillmap-1.control"] * 2], test.image())
    restore = Plugin(test)
    expect(restore.call("init", RESTORE) == 0, restore.log)
    for pid in inner:
        expect(restore.call("hook", RESUME_LATE, pid) == NOT_OURS, restore.log)
    for i in range(3):
        wait_for("the resume", lambda: mapped(i) != 0, 20)  # pylint: disable=cell-var-from-loop
        expect_right(outer[i])


@case
def settings(test):
    """Values that are wrong."""
    for name, value, message in (("STILLMAP_CRIU_TIMEOUT", "0", "is no number of seconds from 1 to 86400"),
                                 ("STILLMAP_CRIU_TREE", "self", "is no process from 1 to"),
                                 ("STILLMAP_CRIU_COMMAND", "stillmap", "is no absolute path")):
        plugin = Plugin(test, **{name: value})
        expect(plugin.call("init", DUMP) == -1, plugin.log)
        expect(any(message in line and value in line for line in plugin.log), plugin.log)


@case
def real(test):
    """CRIU itself: a program is dumped, killed and restored, and its memory comes back."""
    criu = os.environ.get("STILLMAP_CRIU") or shutil.which("criu", path=f"{os.environ['PATH']}:/usr/sbin")
    if criu is None:
        print("  skipped: there is no criu; STILLMAP_CRIU names one")
        return
    check = subprocess.run([criu, "check"], check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if check.returncode != 0:
        errors = [line for line in check.stdout.splitlines() if line.startswith("Error") and "exited" not in line]
        print(f"  skipped: criu check: {(errors or ['failed'])[0]}")
        return
    commands, output = test.folder / "commands", test.folder / "output"
    os.mkfifo(commands)  # no pipe, which would have an end outside of what is dumped
    with open(os.open(commands, os.O_RDWR), "w", encoding="utf-8", buffering=1) as to, output.open("w") as written:
        program = subprocess.Popen(
            [BUILT / "tests" / "preload_operated", "1"], stdin=to, stdout=written, stderr=written, start_new_session=True,
            env={**test.machine.environment, "HOSTCUDA": "profile=h200", "STILLMAP_PRELOAD_CONTROL": "1",
                 "LD_PRELOAD": str(BUILT / "preload" / "libstillmap_preload.so")})
        stack = test.stack
        stack.callback(lambda: subprocess.run(["kill", "-9", str(program.pid)], check=False, stderr=subprocess.DEVNULL))
        wait_for("the program", lambda: output.read_text(encoding="utf-8").startswith("ready"))
        for words in (["dump", "--leave-running"], ["dump"], ["restore", "--restore-detached"]):
            tree = ["--tree", str(program.pid)] if words[0] == "dump" else []
            log = test.images / f"{words[0]}.log"
            done = subprocess.run([criu, *words, *tree, "-D", test.images, "-v4", "-o", log.name, "--libdir", test.build],
                                  check=False, env={**os.environ, "STILLMAP_CRIU_COMMAND": COMMAND})
            text = log.read_text(encoding="utf-8", errors="replace")
            expect(done.returncode == 0, f"criu {words} failed:\n{text[-2000:]}")
            expect("is resumed once its process runs" in text, f"criu {words} did not call the plugin")
            if words == ["dump"]:
                program.wait()
            else:
                test.wait_until_resumed(f"@stillmap-{program.pid}.control")
        to.write("constant\n")
        wait_for("its answer", lambda: "right" in output.read_text(encoding="utf-8").splitlines())


def build_plugin(folder):
    words = ["-DSTILLMAP_WERROR=ON", "-DSTILLMAP_CRIU_HOST=ON", "-DCMAKE_BUILD_TYPE=Release"]
    if "CRIU_INCLUDE_DIR" in os.environ:
        words.append(f"-DCRIU_INCLUDE_DIR={os.environ['CRIU_INCLUDE_DIR']}")
    for step in (["-S", ROOT / "tools" / "criu", "-B", folder, *words], ["--build", folder]):
        done = subprocess.run(["cmake", *map(str, step)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False)
        if done.returncode:
            sys.exit(f"criu: the plugin does not build:\n{done.stdout}")


def main():
    names = sys.argv[1:] or list(CASES)
    if any(name not in CASES for name in names):
        sys.exit(__doc__ + "\nCases: " + " ".join(CASES))
    failed = 0
    with tempfile.TemporaryDirectory(prefix="stillmap-criu-build-") as build:
        build_plugin(build)
        for name in names:
            began = time.monotonic()
            print(f"{name}: {CASES[name].__doc__}", flush=True)
            try:
                with contextlib.ExitStack() as stack:
                    CASES[name](Test(stack, pathlib.Path(build)))
                print(f"  ok, {time.monotonic() - began:.1f} s", flush=True)
            except (Failed, OSError, subprocess.SubprocessError) as failure:
                failed += 1
                print(f"  FAILED: {failure}", flush=True)
    if failed:
        sys.exit(f"criu: {failed} of {len(names)} cases failed")
    print(f"criu: {len(names)} cases passed")


if __name__ == "__main__":
    main()
