#!/usr/bin/env python3
"""Slurm suspends, resumes and preempts jobs, and Stillmap's plugins take their device memory away and bring it back.

    tools/check/slurm.py [CASE...]

A real munged, slurmctld and slurmd run on this machine with a configuration, a key and a state of their own, and the
plugins of tools/slurm. Jobs run programs that nobody changed on a machine of hostcuda with little memory. Needs root,
Debian's slurm-wlm, munge and libslurm-dev, and the command and the tests' programs as Bazel builds them.
"""
import contextlib
import ctypes
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import operated_machine
from operated_machine import BUILT, Failed, free_ports

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 180  # seconds
MIB = 1 << 20
DEVICE_MIB = 80
CASES = {}
wait_for = functools.partial(operated_machine.wait_for, patience=PATIENCE)


def case(function):
    CASES[function.__name__] = function
    return function


def expect(condition, what):
    if not condition:
        raise Failed(what)


def process_state(pid):
    """'T' of a stopped one, None of one that has ended."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    return None


class Device:
    """What NVML says of the device."""

    def __init__(self, machine):
        os.environ["HOSTCUDA"] = machine
        ctypes.CDLL(str(BUILT / "hostcuda" / "libcuda.so.1"))  # which NVML finds by its name then
        self.library = ctypes.CDLL(str(BUILT / "hostcuda" / "nvml" / "libnvidia-ml.so.1"))
        expect(self.library.nvmlInit_v2() == 0, "no NVML")
        self.handle = ctypes.c_void_p()
        expect(self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle)) == 0, "no device")

    def used_mib(self):
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        expect(self.library.nvmlDeviceGetMemoryInfo(self.handle, memory) == 0, "no figures of the device")
        return memory[2] // MIB


class Cluster:
    """A cluster of one node: its daemons, and its commands."""

    def __init__(self, stack, preempt_mode="SUSPEND,GANG"):
        self.stack = stack
        self.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stillmap-slurm-")))
        self.folder.chmod(0o755)
        machine = f"profile=h200,memory={DEVICE_MIB}M,machine=slurm-{os.getpid()}"
        self.device = Device(machine)
        folders = [BUILT / "hostcuda", BUILT / "hostcuda" / "nvml"]
        # Nothing of a Slurm around this one.
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))}
        self.environment = {**plain, "HOSTCUDA": machine, "LD_LIBRARY_PATH": ":".join(map(str, folders)),
                            "PATH": f"{BUILT}/tools:{os.environ['PATH']}",
                            "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.preempt_mode = preempt_mode
        self.slurmd = None
        self.daemons = []
        stack.callback(self.end)
        self.build_plugins()
        self.start_munge()
        self.configure()
        self.start_daemon("slurmctld", "slurmctld", "-D", "-i")
        self.start_slurmd()
        wait_for("an idle node", lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"))

    def build_plugins(self):
        self.plugins = self.folder / "plugins"
        log = self.folder / "cmake.log"
        with log.open("w") as to:
            for words in (["-S", ROOT / "tools" / "slurm", "-B", self.plugins, "-DSTILLMAP_WERROR=ON"],
                          ["--build", self.plugins]):
                if subprocess.run(["cmake", *map(str, words)], stdout=to, stderr=to, check=False).returncode:
                    raise Failed(f"the plugins do not build:\n{log.read_text()}")

    def start_daemon(self, name, *words):
        log = self.stack.enter_context((self.folder / f"{name}.out").open("a"))
        environment = {n: v for n, v in self.environment.items() if n not in ("HOSTCUDA", "LD_LIBRARY_PATH")}
        process = subprocess.Popen([str(word) for word in words], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, start_new_session=True)
        self.daemons.append(process)
        return process

    def start_munge(self):
        folder = self.folder / "munge"
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.munge_socket = folder / "socket"
        self.start_daemon("munged", "munged", "--foreground", f"--socket={self.munge_socket}", f"--key-file={key}",
                          f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed")
        wait_for("munged", self.munge_socket.exists)

    def configure(self):
        controller, node = free_ports(2)
        host = socket.gethostname().split(".")[0]
        system = sorted(pathlib.Path("/usr/lib").glob("*/slurm-wlm"))
        expect(system, "Debian's plugins of Slurm are not in /usr/lib/*/slurm-wlm")
        # Jobs of a gang have the same processors; others have not.
        share = "FORCE:1" if "GANG" in self.preempt_mode else "NO"
        for name in ("state", "spool", "pmix"):
            (self.folder / name).mkdir()
        # Not in /tmp, where another cluster's job with the same number may be, or what it has left.
        (self.folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={self.folder}/pmix\n", encoding="utf-8")
        (self.folder / "slurm.conf").write_text(f"""
ClusterName=stillmap
SlurmUser=root
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={self.munge_socket}
CredType=cred/munge
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.log
SlurmdDebug=debug
PluginDir={self.plugins}:{system[0]}
PlugStackConfig={self.folder}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/stillmap
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode={self.preempt_mode}
SlurmctldParameters=preempt_send_user_signal
SchedulerType=sched/builtin
MessageTimeout=60
KillWait=5
SchedulerTimeSlice=5
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 OverSubscribe={share} GraceTime=60
PartitionName=high Nodes={host} PriorityTier=2 OverSubscribe={share} PreemptMode=OFF
""", encoding="utf-8")
        self.set_arguments()
        self.set_timeout(20)

    def set_arguments(self, *arguments, library=BUILT / "preload" / "libstillmap_preload.so"):
        (self.folder / "plugstack.conf").write_text(
            f"required {self.plugins}/stillmap.so library={library} {' '.join(arguments)}\n", encoding="utf-8")

    def set_timeout(self, seconds):
        lines = f"Command={BUILT}/tools/stillmap", f"SuspendTimeout={seconds}", f"LockFile={self.folder}/lock"
        (self.folder / "stillmap.conf").write_text("\n".join(lines), encoding="utf-8")

    def start_slurmd(self):
        self.slurmd = self.start_daemon("slurmd", "slurmd", "-D")

    def kill_slurmd(self):
        self.slurmd.kill()
        self.slurmd.wait()

    def run(self, *words):
        done = subprocess.run([str(word) for word in words], env=self.environment, text=True, check=False,
                              capture_output=True, timeout=PATIENCE)
        if done.returncode:
            raise Failed(f"{' '.join(map(str, words))}: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout

    def end(self):
        """The daemons, and what a killed one has left: processes of jobs, and slurmstepd."""
        if self.slurmd is not None:
            with contextlib.suppress(Failed, subprocess.SubprocessError):
                self.end_case()
        for process in reversed(self.daemons):
            process.kill()
            process.wait()
        ours = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if ours in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
        self.keep_logs()

    def keep_logs(self):
        logs = ROOT / "out" / "slurm" / self.preempt_mode
        logs.mkdir(parents=True, exist_ok=True)
        for file in (*self.folder.glob("*.log"), *self.folder.glob("*.out"), *self.folder.glob("*.conf")):
            shutil.copy(file, logs)

    def end_case(self):
        if self.slurmd.poll() is not None:
            self.start_slurmd()
        self.run("scancel", "--full", "--user=root")
        wait_for("an empty queue", lambda: not self.run("squeue", "-h"))

    def log(self):
        """Of slurmd."""
        return (self.folder / "slurmd.log").read_text(encoding="utf-8", errors="replace").splitlines()

    def ours(self):
        """What it has of Stillmap."""
        return [line.split("stillmap: ")[-1] for line in self.log() if "stillmap: " in line]

    def wait_for_log(self, pattern, known):
        return wait_for(f"'{pattern}' in slurmd's log", lambda: next(
            (line.split("stillmap: ")[-1] for line in self.log()[known:] if re.search(pattern, line)), None))


class Job:
    """A batch job of as many tasks as `mib` has numbers, each with so much device memory; ranks of MPI have all the same."""

    def __init__(self, cluster, name, mib, *options, how="srun"):
        self.cluster = cluster
        self.name = name
        self.tasks = range(len(mib))
        self.folder = cluster.folder / name
        self.folder.mkdir()
        program = BUILT / "tests" / "preload_job"
        sizes = " ".join(map(str, mib))
        task = f"s=({sizes}); exec {program} {self.folder} $SLURM_PROCID ${{s[$SLURM_PROCID]}}"
        run = f"srun -n{len(mib)} bash -c '{task}'"
        if how == "script":
            run = f"exec {program} {self.folder} 0 {mib[0]}"
        elif how == "mpi":
            ranks = BUILT / "tests" / "preload_job_ranks"
            run = f"srun --mpi=pmix -n{len(mib)} --overcommit {ranks} {self.folder} {mib[0]}"
        elif how == "example":
            run = (ROOT / "tools" / "slurm" / "examples" / "snapshot_before_requeue.sh").read_text(encoding="utf-8")
            options = (*options, "--requeue", "--open-mode=append")
        script = self.folder / "script"
        script.write_text(f"#!/bin/bash\n{run}\n", encoding="utf-8")
        words = [program, self.folder, 0, mib[0]] if how == "example" else []
        answer = cluster.run("sbatch", "--parsable", f"-J{name}", "-n2", f"-D{self.folder}", f"-o{self.folder}/output",
                             *options, script, *words)
        self.id = int(answer.split()[-1])

    def text(self, task, kind):
        return (self.folder / f"{task}.{kind}").read_text(encoding="utf-8").strip()

    def pids(self):
        return [int(self.text(task, "ready")) for task in self.tasks]

    def wait_until_ready(self):
        wait_for(f"memory of job {self.name}: {self.output()}", lambda: self.pids())

    def output(self):
        with contextlib.suppress(OSError):
            return (self.folder / "output").read_text(encoding="utf-8").strip()
        return ""

    def rounds(self):
        """How many each task has done; 0 before the first has ended."""
        done = [task for task in self.tasks if (self.folder / f"{task}.rounds").exists()]
        return [int(self.text(task, "rounds")) if task in done else 0 for task in self.tasks]

    def wait_until_working(self):
        """All tasks have done a round more than now."""
        before = self.rounds()
        wait_for(f"work of job {self.name}", lambda: all(a > b for a, b in zip(self.rounds(), before)))

    def state(self):
        return re.search(r"JobState=(\w+)", self.cluster.run("scontrol", "show", "job", self.id)).group(1)

    def wait_for_state(self, *states):
        return wait_for(f"job {self.name} {states}", lambda: next((s for s in [self.state()] if s in states), None))

    def stopped(self):
        return [process_state(pid) == "T" for pid in self.pids()]

    def wait_until_stopped(self):
        wait_for(f"stopped processes of job {self.name}", lambda: all(self.stopped()))

    def finish(self):
        """Lets it end, and returns what each task says of its bytes."""
        (self.folder / "finish").touch()
        self.wait_for_state("COMPLETED", "FAILED", "CANCELLED")
        return self.ends()

    def ends(self):
        return [self.text(task, "end") for task in self.tasks]

    def expect_right(self):
        ends = self.finish()
        expect(ends == ["right"] * len(self.tasks), f"job {self.name} ended with {ends}: {self.output()}")


def suspend(cluster, job, most_mib):
    """The device has so little in use before the first process is stopped."""
    before = cluster.device.used_mib()
    began = time.monotonic()
    cluster.run("scontrol", "suspend", job.id)
    freed = stopped = None
    while stopped is None:
        expect(time.monotonic() < began + PATIENCE, "the processes are not stopped")
        if freed is None and cluster.device.used_mib() <= most_mib:
            freed = time.monotonic()
        if any(job.stopped()):
            stopped = time.monotonic()
        time.sleep(0.005)
    expect(freed is not None, f"the processes are stopped with {cluster.device.used_mib()} MiB on the device")
    print(f"  {before} MiB on the device, {cluster.device.used_mib()} MiB {freed - began:.2f} s after scontrol suspend, "
          f"processes stopped after {stopped - began:.2f} s")
    job.wait_until_stopped()


@case
def suspended_by_hand(cluster):
    """scontrol suspend frees the device before the processes stop; scontrol resume brings all bytes back."""
    job = Job(cluster, "by-hand", [16, 16], "--stillmap")
    job.wait_until_ready()
    listed = json.loads(cluster.run("stillmap", "task", "list", "--filter", f"job:{job.id}", "--json"))
    expect(sorted(t["pid"] for t in listed["tasks"]) == sorted(job.pids()), f"tasks of job {job.id}: {listed}")
    before = cluster.device.used_mib()
    suspend(cluster, job, before - 32)
    cluster.run("scontrol", "resume", job.id)
    job.wait_until_working()
    print(f"  slurmd: {cluster.ours()[-1]}")
    # A suspend right behind a resume, as a gang scheduler may send it: the resume ends, in whatever state it is. (Only
    # once slurmd has the one before: requests for a job that come while slurmd carries one out have no order.)
    for action, outcome in (("suspend", "suspended"), ("resume", None), ("suspend", "suspended")):
        known = len(cluster.log())
        cluster.run("scontrol", action, job.id)
        cluster.wait_for_log(f"jobid={job.id} .*action={action}", known)
        if outcome:
            cluster.wait_for_log(f"of job {job.id} {outcome}", known)
            for step in ("batch", 0):
                cluster.wait_for_log(rf"Suspended StepId={job.id}\.{step}", known)
    job.wait_until_stopped()
    expect(cluster.device.used_mib() <= before - 32, f"{cluster.device.used_mib()} MiB on the device")
    cluster.run("scontrol", "resume", job.id)
    job.wait_until_working()
    job.expect_right()


def preempt(cluster, name, *options):
    """A low job of four ranks of MPI, then a high one that does not fit beside it."""
    low = Job(cluster, f"low-{name}", [8] * 4, "-plow", *options, how="mpi")
    low.wait_until_ready()
    high = Job(cluster, f"high-{name}", [60], "-phigh", *options)
    wait_for("an end or memory of the high job", lambda: [*high.folder.glob("0.ready"), *high.folder.glob("0.end")])
    return low, high


@case
def preempted(cluster):
    """Two jobs whose memory does not fit together, one of which preempts the other: both end with the right bytes."""
    low, high = preempt(cluster, "with", "--stillmap")
    high.wait_until_working()
    expect(low.state() == "SUSPENDED", f"the low job is {low.state()}")
    low.wait_until_stopped()
    high.expect_right()
    low.wait_for_state("RUNNING")
    low.wait_until_working()
    # Once more, by a program without srun between.
    again = Job(cluster, "high-again", [60], "-phigh", "--stillmap", how="script")
    again.wait_until_ready()
    again.expect_right()
    low.wait_until_working()
    low.expect_right()


@case
def preempted_without(cluster):
    """The same without Stillmap: the job that preempts finds no memory."""
    low, high = preempt(cluster, "without")
    high.wait_for_state("FAILED")
    expect(high.ends() == ["out of memory"], f"the high job ended with {high.ends()}: {high.output()}")
    print(f"  high: {high.ends()[0]}, with the low job {low.state()} and {cluster.device.used_mib()} MiB in use")
    low.wait_for_state("RUNNING")
    low.expect_right()


@case
def full_device(cluster):
    """A job that is resumed while another has its memory waits for it; a suspend ends the wait."""
    job = Job(cluster, "waits", [20, 20], "--stillmap")
    job.wait_until_ready()
    cluster.run("scontrol", "suspend", job.id)
    job.wait_until_stopped()
    other = Job(cluster, "takes", [60], "--stillmap")
    other.wait_until_ready()
    known = len(cluster.log())
    cluster.run("scontrol", "resume", job.id)
    wait_for("processes that go on", lambda: not any(job.stopped()))
    cluster.run("scontrol", "suspend", job.id)
    cluster.wait_for_log(f"resume of job {job.id} ended by signal 9", known)
    cluster.wait_for_log(f"of job {job.id} suspended", known)
    job.wait_until_stopped()
    cluster.run("scontrol", "resume", job.id)
    wait_for("processes that go on", lambda: not any(job.stopped()))
    other.wait_until_working()
    other.expect_right()
    job.wait_until_working()
    job.expect_right()


@case
def slurmd_killed(cluster):
    """slurmd is killed while a job is suspended, and while it suspends one; started again, it resumes the job."""
    job = Job(cluster, "killed", [16, 16], "--stillmap")
    job.wait_until_ready()
    for moment in ("stopped", "suspending"):
        known = len(cluster.log())
        cluster.run("scontrol", "suspend", job.id)
        cluster.wait_for_log(f"jobid={job.id} .*action=suspend", known)
        if moment == "stopped":
            job.wait_until_stopped()
        cluster.kill_slurmd()
        if moment == "stopped":
            expect(cluster.device.used_mib() < 16, f"{cluster.device.used_mib()} MiB on the device")
        known = len(cluster.log())
        cluster.start_slurmd()
        cluster.wait_for_log("slurmd started on", known)
        cluster.run("scontrol", "resume", job.id)
        cluster.wait_for_log(f"of job {job.id} resumed", known)
        job.wait_until_working()
    job.expect_right()


def suspend_in_vain(cluster, job, *reasons):
    """The job is stopped with all its memory, and slurmd's log says why. Returns the least memory meanwhile, in MiB."""
    used = least = cluster.device.used_mib()
    known = len(cluster.log())
    began = time.monotonic()
    cluster.run("scontrol", "suspend", job.id)

    def reason():
        nonlocal least
        least = min(least, cluster.device.used_mib())
        return next((line for line in cluster.log()[known:] if f"suspend of job {job.id} failed" in line), None)

    line = wait_for(f"an end of the suspend of job {job.id}", reason).split("stillmap: ")[-1]
    took = time.monotonic() - began
    print(f"  after {took:.1f} s: {line}")
    expect(3 <= took < 3 + 10, f"slurmd waited for {took:.1f} s, not for 3")
    for words in reasons:
        expect(words in line, f"it does not say '{words}'")
    expect("is not known" not in line, "a rank was left suspended")
    job.wait_until_stopped()
    expect(cluster.device.used_mib() == used, f"{cluster.device.used_mib()} MiB on the device, not {used}")
    return least


@case
def silent(cluster):
    """A rank that does not answer: after the timeout the job is stopped with its memory, and goes on afterwards."""
    job = Job(cluster, "silent", [16] * 4, "--stillmap", how="mpi")
    job.wait_until_ready()
    used = cluster.device.used_mib()
    os.kill(job.pids()[1], signal.SIGSTOP)
    cluster.set_timeout(3)
    least = suspend_in_vain(cluster, job, f"stillmap-{job.pids()[1]}.control does not answer")
    cluster.set_timeout(20)
    expect(least == used, f"the memory of other ranks was suspended: {least} MiB of {used} were left")
    cluster.run("scontrol", "resume", job.id)
    job.wait_until_working()
    job.expect_right()


@case
def ranks(cluster):
    """Four ranks of MPI by srun: all are suspended, or none where one of them captures a graph."""
    job = Job(cluster, "ranks", [16] * 4, "--stillmap", how="mpi")
    job.wait_until_ready()
    job.wait_until_working()
    used = cluster.device.used_mib()
    expect(used >= 64, f"{used} MiB on the device")
    suspend(cluster, job, used - 64)
    cluster.run("scontrol", "resume", job.id)
    job.wait_until_working()
    print(f"  slurmd: {cluster.ours()[-1]}")
    (job.folder / "2.capture").touch()
    wait_for("a graph that is captured", (job.folder / "2.captures").exists)
    cluster.set_timeout(3)
    suspend_in_vain(cluster, job, f"stillmap-{job.pids()[2]}.control", "captures a graph", "every other task is as it was")
    cluster.set_timeout(20)
    cluster.run("scontrol", "resume", job.id)
    job.wait_until_working()
    (job.folder / "2.capture").unlink()
    wait_for("the graph's end", lambda: not (job.folder / "2.captures").exists())
    suspend(cluster, job, used - 64)
    cluster.run("scontrol", "resume", job.id)
    job.wait_until_working()
    job.expect_right()


def run_again(cluster, job, first):
    """A job that has had itself requeued: it has saved its memory."""
    print("  " + cluster.run("stillmap", "image", "verify", job.folder / f"job-{job.id}.smi").strip().splitlines()[-1])
    # slurmd takes no credential of the second in which it has revoked the job's ("Killing non-startable batch").
    time.sleep(1.5)
    # Slurm waits for two minutes by itself.
    cluster.run("scontrol", "update", f"JobId={job.id}", "TimeLimit=30", "StartTime=now")
    wait_for("the second run", lambda: job.pids() != first)
    job.wait_until_working()
    job.expect_right()


# Listens, and accepts nothing; with a second argument, as many clients as its backlog has room for wait already.
SILENT = """
use Socket;
my ($server, $client, $name) = (undef, undef, pack_sockaddr_un("\\0" . shift));
socket($server, PF_UNIX, SOCK_STREAM, 0) && bind($server, $name) && listen($server, 0) or die "$!";
if (@ARGV) { socket($client, PF_UNIX, SOCK_STREAM, 0) && connect($client, $name) or die "$!"; }
$| = 1; print "ready\\n"; sleep 1000;
"""


@case
def strangers(cluster):
    """Processes of another user that say they are of the job do not keep it from being suspended."""
    job = Job(cluster, "victim", [16, 16], "--stillmap")
    job.wait_until_ready()
    strangers = []
    for name, more in ((f"stillmap-{os.getpid()}-x.control", []), (f"stillmap-{job.pids()[0]}xcontrol", ["full"])):
        strangers.append(subprocess.Popen(
            ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "perl", "-e", SILENT, name, *more],
            env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(job.id)}, stdout=subprocess.PIPE, text=True))
    try:
        for stranger in strangers:
            expect(stranger.stdout.readline() == "ready\n", "a stranger does not listen")
        known = len(cluster.log())
        cluster.run("scontrol", "suspend", job.id)
        print("  " + cluster.wait_for_log(f"of job {job.id} (suspended|cannot)", known))
        job.wait_until_stopped()
        expect(cluster.device.used_mib() < 16, f"{cluster.device.used_mib()} MiB on the device")
        cluster.run("scontrol", "resume", job.id)
        job.wait_until_working()
        job.expect_right()
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()


@case
def requeued(cluster):
    """The example of a job that saves its memory and has itself requeued before its time is over."""
    job = Job(cluster, "requeued", [16], "-t1", "--signal=B:USR1@60", "--stillmap", how="example")
    job.wait_until_ready()
    first = job.pids()
    job.wait_for_state("PENDING")
    run_again(cluster, job, first)


@case
def preempted_by_requeue(_):
    """The same where Slurm preempts by requeueing, after a grace time."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster(stack, "REQUEUE")
        job = Job(cluster, "preempted", [32], "--signal=B:USR1@60", "--stillmap", how="example")
        job.wait_until_ready()
        first = job.pids()
        high = Job(cluster, "requeues", [60], "-phigh", "--stillmap")
        high.wait_until_ready()
        high.expect_right()
        run_again(cluster, job, first)


@case
def options(cluster):
    """Options reach the script of a batch job; values are checked when a job is submitted."""
    job = Job(cluster, "limited", [32], "--stillmap-limit=16M", how="script")
    job.wait_for_state("FAILED")
    expect(job.ends() == ["out of memory"], f"beyond its limit: {job.ends()}: {job.output()}")
    for wrong, message in (("--stillmap-limit=5Q", "--stillmap-limit: '5Q' is not a size"),
                           ("--stillmap-priority=high", "--stillmap-priority: 'high' is not a whole number"),
                           ("--stillmap-minimum=1G", "they go with --stillmap-share"),
                           ("--stillmap-share=:1G", "--stillmap-share: ':1G' names no quota")):
        for submit in (["sbatch", "--wrap", "true"], ["srun", "true"]):
            try:
                cluster.run(submit[0], wrong, *submit[1:])
            except Failed as refused:
                expect(message in str(refused), str(refused))
            else:
                raise Failed(f"{submit[0]} {wrong} is accepted")
    shown = cluster.run("srun", "--stillmap-limit=20GiB", "--stillmap-share=gpu0:60GiB", "--stillmap-priority=3", "env")
    for line in (f"LD_PRELOAD={BUILT}/preload/libstillmap_preload.so", f"STILLMAP_PRELOAD_LIMIT={20 << 30}",
                 f"STILLMAP_PRELOAD_SHARE=gpu0:{60 << 30}", "STILLMAP_PRELOAD_PRIORITY=3",
                 "STILLMAP_PRELOAD_CONTROL=1"):
        expect(line in shown.splitlines(), f"no {line} in {shown}")


@case
def site(cluster):
    """Defaults of plugstack.conf, jobs that do not want them, and a node without the library."""
    seen = "printenv STILLMAP_PRELOAD_LIMIT LD_PRELOAD; true"

    def lines(*words):
        return cluster.run(*words).split()

    def batch(*options, srun=""):
        output = cluster.folder / "site.output"
        cluster.run("sbatch", "--wait", f"-o{output}", *options, "--wrap", f"srun {srun} bash -c '{seen}' 2>/dev/null")
        return output.read_text(encoding="utf-8").split()

    library = str(BUILT / "preload" / "libstillmap_preload.so")
    expect(lines("srun", "bash", "-c", seen) == [], "a job has Stillmap that did not ask for it")
    cluster.set_arguments("default=on", "limit=3G")
    expect(lines("srun", "bash", "-c", seen) == [str(3 << 30), library], "srun has no default")
    expect(lines("srun", "--stillmap-limit=1G", "bash", "-c", seen) == [str(1 << 30), library], "srun has another limit")
    expect(batch() == [str(3 << 30), library], "sbatch has no default")
    expect(batch("--stillmap-limit=1G") == [str(1 << 30), library], "the step of a script has another limit")
    expect(batch("--no-stillmap") == [], "the step of a script has the default")
    expect(batch(srun="--no-stillmap") == [], "the step of a script has what its srun did not want")
    cluster.set_arguments("default=on", library="/none")
    expect(lines("srun", "bash", "-c", seen) == [], "the default needs the library")
    try:
        cluster.run("srun", "--stillmap", "true")
    except Failed as refused:
        expect("/none cannot be read on this node" in str(refused), str(refused))
    else:
        raise Failed("a job runs without the library that it asked for")
    cluster.set_arguments("limit=x")
    try:
        cluster.run("srun", "true")
    except Failed as refused:
        expect("limit: 'x' is not a size" in str(refused), str(refused))
    else:
        raise Failed("a wrong argument of plugstack.conf is accepted")
    cluster.set_arguments()


def main():
    names = sys.argv[1:] or list(CASES)
    if any(name not in CASES for name in names):
        sys.exit(__doc__ + "\nCases: " + " ".join(CASES))
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "cmake") if not shutil.which(name)]
    if missing or os.geteuid() != 0:
        sys.exit(f"slurm: needs root, and {', '.join(missing) or 'nothing else'}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("slurm: asked to end"))  # and end the daemons
    failed = 0
    with contextlib.ExitStack() as stack:
        cluster = Cluster(stack)
        for name in names:
            began = time.monotonic()
            print(f"{name}: {CASES[name].__doc__}", flush=True)
            try:
                CASES[name](cluster)
                print(f"  ok, {time.monotonic() - began:.1f} s", flush=True)
                cluster.end_case()
            except (Failed, OSError, subprocess.SubprocessError) as failure:
                failed += 1
                print(f"  FAILED: {failure}\n  " + "\n  ".join(cluster.ours()[-10:]), flush=True)
                cluster.end_case()
    if failed:
        sys.exit(f"slurm: {failed} of {len(names)} cases failed")
    print(f"slurm: {len(names)} cases passed")


if __name__ == "__main__":
    main()
