#!/usr/bin/env python3
"""A job of four ranks, by a real mpirun, moves to four receivers by one command: all of it, or nothing.

First one receiver is missing: the job goes on, with every rank. Then all are there: every rank's memory arrives, with
the bytes of one and the same step, and the job ends. Between, one rank stands still, and the others are not moved.

Needs openmpi-bin, and the command, the example and hostcuda as Bazel builds them. No arguments.
"""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from operated_machine import BUILT, Machine, free_ports, wait_for

RANKS = 4
JOB = BUILT / "examples" / "mpi" / "migrating_job"


class Job:
    def __init__(self, machine, top):
        self.machine, self.top = machine, top
        self.fingerprints = {}
        for who in ("here", "there"):
            said = machine.run("task", "migrate", "credentials", top / who)
            self.fingerprints[who] = re.search(r"[0-9a-f]{64}", said)[0]
            (top / f"records-{who}").mkdir()
        self.ports = free_ports(RANKS)
        self.receivers = {}
        self.process = machine.start(
            ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", RANKS,
             JOB, 1_000_000], TMPDIR=str(top / "t"))
        assert self.process.stdout.readline() == "running\n", "the job did not start"

    def identity(self, who, other):
        return ["--credentials", self.top / who, "--peer-fingerprint", self.fingerprints[other],
                "--records", self.top / f"records-{who}"]

    def receive(self, i):
        socket = f"@stillmap-ranks-{os.getpid()}-{i}.control"
        receiver = self.machine.start(
            [BUILT / "tools" / "stillmap", "task", "migrate", "receive", f"127.0.0.1:{self.ports[i]}", "--control",
             socket, "--save", self.top / f"{i}.smi", *self.identity("there", "here")])
        self.receivers[i] = receiver
        wait_for("a receiver", lambda: subprocess.run(
            ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{self.ports[i]}"], stderr=subprocess.DEVNULL,
            check=False).returncode == 0)

    def tasks(self):
        listed = json.loads(self.machine.run("task", "list", "--json", "--filter", "name:migrating_job"))
        return listed["tasks"]

    def send(self, *more):
        to = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return subprocess.run(
            [str(word) for word in [BUILT / "tools" / "stillmap", "task", "migrate", "send", "name:migrating_job",
                                    "--each", "--all", "--to", to, *self.identity("here", "there"), *more]],
            env=self.machine.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)

    def goes_on(self):
        """Whether every rank has its memory, and all make steps: a rank that stood still would stop the others."""
        assert self.process.poll() is None, "the job has ended"
        tasks = self.tasks()
        assert len(tasks) == RANKS, tasks
        images = [self.top / "first.smi", self.top / "second.smi"]

        def moves():
            for image in images:
                self.machine.run("task", "snapshot", tasks[0]["socket"], "--all", "--replace", "-o", image)
            differs = subprocess.run([BUILT / "tools" / "stillmap", "image", "diff", *images],
                                     env=self.machine.environment, stdout=subprocess.DEVNULL, check=False)
            return differs.returncode == 6

        wait_for("a further step", moves)


def check_one_missing(job):
    for i in range(RANKS - 1):
        job.receive(i)
    done = job.send("--within", 20)
    assert done.returncode != 0, done
    assert f"127.0.0.1:{job.ports[-1]}" in done.stderr and "no task has moved" in done.stderr, done.stderr
    job.goes_on()
    print("one receiver is missing:", done.stderr.strip().splitlines()[-1])


def check_one_stopped(job):
    job.receive(RANKS - 1)
    stopped = job.tasks()[1]["pid"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        done = job.send("--within", 2, "--timeout", 2)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert done.returncode == 4 and "no answer" in done.stderr, done
    job.goes_on()
    print("one rank stands still:", done.stderr.strip().splitlines()[-1])


def check_all(job):
    done = job.send("--within", 60)
    print(done.stderr.strip(), done.stdout.strip(), sep="\n")
    assert done.returncode == 0, done
    assert done.stdout.count("now owned by") == RANKS, done.stdout
    assert job.process.wait(60) == 0
    said = job.process.stdout.read()
    assert said.count("its memory has moved") == RANKS, said
    steps = set(re.findall(r"(\d+) steps", said))
    assert len(steps) == 1, said
    step = int(steps.pop())
    came = set()
    for i, receiver in job.receivers.items():
        receiver.send_signal(signal.SIGTERM)
        assert receiver.wait(60) == 0, i
        came.add(int(subprocess.run([JOB, "check", job.top / f"{i}.smi"], env=job.machine.environment, text=True,
                                    stdout=subprocess.PIPE, check=True).stdout))
    assert came == {(step + rank) % 256 for rank in range(RANKS)}, (step, came)
    print(f"{RANKS} ranks stopped at step {step}, and every byte of them is at their destinations")


def main():
    with contextlib.ExitStack() as stack:
        machine = Machine(stack, "ranks")
        # A short path, because mpirun creates sockets in it.
        top = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ranks-", dir="/tmp")))
        (top / "t").mkdir()
        job = Job(machine, top)
        check_one_missing(job)
        check_one_stopped(job)
        check_all(job)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    main()
