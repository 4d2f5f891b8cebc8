"""Runs the cases of GoogleTest programs against mutants."""

import dataclasses
import os
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import time

EVENT = re.compile(
    rb"\[( RUN      |       OK |  FAILED  |  SKIPPED )\] ([\w/.]+)(?:.*\((\d+) ms\))?")
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 2 // 5  # of one program, bytes


@dataclasses.dataclass
class Outcome:
    how: str  # "passed", or what went wrong
    case: str = ""
    times: dict = dataclasses.field(default_factory=dict)  # seconds of each case that passed
    skipped: bool = False
    seconds: float = 0


class Program:
    """A test program on one profile of hostcuda."""

    def __init__(self, label, binary, profile, tree_bin):
        self.name = label.lstrip("/").replace(":", "/")
        self.binary, self.profile = binary, profile
        self.executable = tree_bin / self.name
        runfiles = pathlib.Path(str(self.executable) + ".runfiles")
        self.folder = next(p for p in sorted(runfiles.iterdir()) if (p / self.name).exists())
        self.environment = {k: v for k, v in os.environ.items()
                            if not k.startswith(("GTEST_", "TEST_", "STILLMAP_", "HOSTCUDA"))}
        self.environment.update({
            "STILLMAP_DRIVER": "host", "HOSTCUDA": "profile=" + profile, "GTEST_FAIL_FAST": "1",
            "STILLMAP_HOSTCUDA": str(tree_bin / "hostcuda" / "libcuda.so.1"),
            "TEST_WORKSPACE": self.folder.name, "TEST_SRCDIR": str(runfiles)})
        self.cases = {}  # of the baseline: seconds by name
        self.startup = 0.0

    def list(self):
        found = subprocess.run([self.executable, "--gtest_list_tests"], cwd=self.folder, text=True,
                               env=self.environment, stdout=subprocess.PIPE, check=True).stdout
        suite, cases = "", []
        for line in found.splitlines():
            name = line.split("#")[0]
            if name.startswith("  "):
                cases.append(suite + name.strip())
            elif name.rstrip().endswith("."):
                suite = name.strip()
        return [c for c in cases if "DISABLED_" not in c]

    def run(self, cases, patience, number=0, reached=None):
        """Runs some cases until one fails. `patience`: seconds for a case, by name."""
        with tempfile.TemporaryDirectory(prefix="mut", ignore_cleanup_errors=True) as folder:
            folder = pathlib.Path(folder)
            environment = dict(self.environment, TMPDIR=str(folder), TEST_TMPDIR=str(folder),
                               STILLMAP_MUTANT=str(number), STILLMAP_MUTANT_RUN=folder.name)
            if reached:
                environment["STILLMAP_MUTANTS_REACHED"] = str(reached)
            try:
                return self.watch(cases, patience, environment, folder / "output")
            finally:
                kill_left_over(folder.name)

    def watch(self, cases, patience, environment, output):
        chosen = ":".join(cases)
        command = ["prlimit", "--core=0", str(self.executable), "--gtest_color=no"]
        if len(chosen) < 120000:
            command.append("--gtest_filter=" + chosen)
        began = since = looked = time.monotonic()
        case, read, outcome = "", 0, Outcome("")
        with open(output, "wb") as out:
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=out,
                                       stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                                       start_new_session=True)
        while not outcome.how:
            try:
                process.wait(timeout=0.1)
                outcome.how = "passed" if process.returncode == 0 else "failed"
            except subprocess.TimeoutExpired:
                if time.monotonic() - looked > 5:
                    since += time.monotonic() - looked  # we were stopped for a while
                looked = time.monotonic()
                outcome.how = self.trouble(process, since, patience(case), output)
            with open(output, "rb") as text:
                text.seek(read)
                new = text.read()
            new = new if process.returncode is not None else new[:new.rfind(b"\n") + 1]
            read += len(new)
            for what, name, ms in EVENT.findall(new):
                name = name.decode()
                if what == b" RUN      ":
                    case, since = name, time.monotonic()
                elif name == case:
                    since = time.monotonic()
                    outcome.skipped |= what == b"  SKIPPED "
                    if what == b"       OK ":
                        outcome.times[name], case = int(ms or 0) / 1000, ""
                    elif what == b"  FAILED  ":
                        outcome.case = name
        if process.returncode is None:
            process.kill()
            process.wait()
        outcome.seconds = time.monotonic() - began
        if outcome.how == "failed" and not outcome.case:
            outcome.how = "crashed (%d)" % process.returncode
        if outcome.how == "passed" and not outcome.skipped and set(cases) - set(outcome.times):
            outcome.how = "ended early"
        if outcome.how != "passed":
            outcome.case = outcome.case or case
        return outcome

    def trouble(self, process, since, patience, output):
        if time.monotonic() - since > patience:
            return "hung"
        try:
            sizes = pathlib.Path("/proc", str(process.pid), "statm").read_text().split()
            resident = int(sizes[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return ""
        if resident > MEMORY or output.stat().st_size > 100 << 20:
            return "used too much memory"
        return ""


def kill_left_over(mark):
    """Ends what a run left behind: the processes that still have its mark in their environment.

    A process in the middle of exec shows no environment, so it takes three scans that find nothing.
    """
    mark = ("STILLMAP_MUTANT_RUN=%s\0" % mark).encode()
    quiet = 0
    while quiet < 3:
        quiet += 1
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and mark in pathlib.Path("/proc", entry, "environ").read_bytes():
                    os.kill(int(entry), signal.SIGKILL)
                    quiet = 0
            except OSError:
                pass  # it is gone, or belongs to another user
        time.sleep(0.01)


class Suite:
    """The programs, and what the baseline found about their cases."""

    def __init__(self, programs, arguments):
        self.programs, self.arguments = programs, arguments
        self.reach = {}  # mutant: [(index of the program, case)]
        self.left_out = []

    def baseline(self, pool):
        print("baseline: %d programs" % len(self.programs), flush=True)
        spent = {}  # on the first profile
        for index, program in enumerate(self.programs):
            if spent.get(program.binary, 0) > self.arguments.longest_program:
                print("  %s: left out, for it takes long" % program.name)
                continue
            began, walls = time.monotonic(), []
            try:
                cases = program.list()
            except subprocess.CalledProcessError as problem:
                print("note: left out: %s: %s" % (program.name, problem))
                continue
            for case, outcome, reached in pool.map(lambda c: self.alone(program, c), cases):
                if outcome.how != "passed" or outcome.skipped:
                    how = outcome.how if outcome.how != "passed" else "skipped"
                    self.left_out.append((program.name, case, how))
                    continue
                program.cases[case] = outcome.times[case]
                walls.append(outcome.seconds - outcome.times[case])
                for number in reached:
                    self.reach.setdefault(number, []).append((index, case))
            program.startup = statistics.median(walls) if walls else 0
            spent.setdefault(program.binary, sum(program.cases.values()))
            print("  %s: %d of %d cases, %.1f s; took %.1f s" % (
                program.name, len(program.cases), len(cases), sum(program.cases.values()),
                time.monotonic() - began), flush=True)
        for name, case, how in self.left_out:
            if how != "skipped":
                print("note: left out: %s %s: %s" % (name, case, how))

    def alone(self, program, case):
        with tempfile.NamedTemporaryFile(prefix="reached") as file:
            file.write(bytes(65536))
            file.flush()
            outcome = program.run([case], lambda _: self.arguments.longest_case, reached=file.name)
            marks = pathlib.Path(file.name).read_bytes()
        return case, outcome, [n for n, mark in enumerate(marks) if mark]

    def save(self):
        return {"left_out": self.left_out, "reach": self.reach,
                "programs": [[p.name, p.cases, p.startup] for p in self.programs]}

    def load(self, saved):
        self.left_out = saved["left_out"]
        self.reach = {int(n): where for n, where in saved["reach"].items()}
        for program, (name, cases, startup) in zip(self.programs, saved["programs"], strict=True):
            assert program.name == name
            program.cases, program.startup = cases, startup

    def plan(self, number):
        """The runs for a mutant, and how many cases are over the budget: the longest ones."""
        seconds = lambda place: self.programs[place[0]].cases[place[1]]
        places = sorted(map(tuple, self.reach.get(number, [])), key=seconds)
        total, runs = 0.0, {}
        for taken, (index, case) in enumerate(places):
            total += seconds((index, case)) + (0 if index in runs else self.programs[index].startup)
            if total > self.arguments.budget:
                break
            runs.setdefault(index, []).append(case)
        else:
            taken = len(places)
        cost = lambda run: (self.programs[run[0]].profile != self.programs[0].profile,
                            sum(self.programs[run[0]].cases[c] for c in run[1]))
        # In a program: in its own order.
        in_order = [(i, sorted(cases, key=list(self.programs[i].cases).index))
                    for i, cases in runs.items()]
        return sorted(in_order, key=cost), len(places) - taken

    def test(self, mutant):
        """Runs what reaches a mutant until it is caught; what results.json says of it."""
        began = time.monotonic()
        runs, left_out = self.plan(mutant.number)
        c = mutant.candidate
        result = {"number": mutant.number, "file": mutant.path, "line": c.line,
                  "operator": c.operator, "before": c.before, "after": c.after,
                  "source": mutant.source, "caught": False,
                  "cases": sum(len(cases) for _, cases in runs), "over_budget": left_out,
                  "programs": [self.programs[index].name for index, _ in runs], "unsteady": []}
        for index, cases in runs:
            program = self.programs[index]
            while cases and not result["caught"]:
                outcome = self.run_twice(program, cases, mutant.number)
                if outcome.how == "passed":
                    break
                if outcome.how.startswith("unsteady"):
                    result["unsteady"].append("%s %s" % (program.name, outcome.case))
                    at = cases.index(outcome.case) if outcome.case in cases else len(cases)
                    cases = cases[at + 1:]
                else:
                    result.update(caught=True, by=program.name, case=outcome.case,
                                  how=outcome.how)
            if result["caught"]:
                break
        result["seconds"] = round(time.monotonic() - began, 1)
        return result

    def run_twice(self, program, cases, number):
        """A run that fails is run again up to the failure, at most twice, until it fails again."""
        patience = lambda case: 5 * program.cases.get(case, program.startup) + 10
        first = program.run(cases, patience, number)
        if first.how == "passed":
            return first
        again = cases[:cases.index(first.case) + 1] if first.case in cases else cases
        for _ in range(2):
            if program.run(again, patience, number).how != "passed":
                return first
        return dataclasses.replace(first, how="unsteady: " + first.how)
