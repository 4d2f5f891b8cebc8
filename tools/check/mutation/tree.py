"""A clone of the project with mutants in it, built by Bazel."""

import concurrent.futures
import dataclasses
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree

from . import operators

PLACE = re.compile(r"([^\s:(),]+):(\d+)(?::\d+)?[:,]")
ERROR = re.compile(r"^([^\s:]+):(\d+):\d+: (?:fatal )?error: ", re.MULTILINE)


@dataclasses.dataclass
class Mutant:
    number: int
    path: str
    candidate: operators.Candidate
    source: str  # the line

    def __str__(self):
        c = self.candidate
        return "%4d %s:%d %s: %s -> %s" % (
            self.number, self.path, c.line, c.operator, c.before, c.after)


class Tree:
    """A clone of the commit, and the mutants in it."""

    def __init__(self, arguments):
        self.root = arguments.work / "tree"
        self.jobs, self.log = arguments.jobs, arguments.work / "build.log"
        if not self.root.exists():
            subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(arguments.tree),
                            str(self.root)], check=True)
            own = arguments.tree / "user.bazelrc"
            if own.exists():
                shutil.copy(own, self.root)
        self.git("fetch", "--quiet", str(arguments.tree), arguments.commit)
        self.git("checkout", "--quiet", "--force", "--detach", arguments.commit)
        self.commit = self.git("rev-parse", "HEAD").strip()
        self.modules = [m for m in arguments.modules.split(",") if (self.root / m).is_dir()]
        self.texts, self.candidates = {}, []
        for module in self.modules:
            for path in sorted((self.root / module).rglob("*")):
                if path.suffix in (".h", ".cpp"):
                    self.read(path)
        random.Random(arguments.seed).shuffle(self.candidates)

    def git(self, *words):
        return subprocess.run(["git", "-C", str(self.root), *words], check=True, text=True,
                              stdout=subprocess.PIPE).stdout

    def read(self, path):
        name = str(path.relative_to(self.root))
        if name in self.texts:
            return  # a module within a module
        text = path.read_text()
        self.texts[name] = text
        try:
            self.candidates += [(name, c) for c in operators.find_candidates(text)]
        except operators.CannotParse as problem:
            print("note: left alone: %s: no bracket for one at %s" % (name, problem))

    def choose(self, count, dropped):
        """The first `count` of the shuffled candidates, at most one in a statement."""
        chosen, statements = [], set()
        for number, (path, candidate) in enumerate(self.candidates, 1):
            statement = (path, candidate.statement)
            if len(chosen) < count and number not in dropped and statement not in statements:
                statements.add(statement)
                source = self.texts[path].splitlines()[candidate.line - 1].strip()
                chosen.append(Mutant(number, path, candidate, source))
        return chosen

    def write(self, mutants):
        by_path = {path: [] for path in self.texts}
        for m in mutants:
            by_path[m.path].append((m.number, m.candidate))
        for path, chosen in by_path.items():
            text = self.texts[path]
            if chosen:
                text = operators.write_mutants(text, path, chosen)
            if (self.root / path).read_text() != text:
                (self.root / path).write_text(text)

    # ---- Bazel ----

    def bazel(self, *words, check=True):
        wrapper = self.root / "tools" / "bazel"
        command = [str(wrapper) if wrapper.exists() else "bazel", *words]
        with open(self.log, "a+") as log:
            log.write("$ %s\n" % " ".join(command)[:1000])
            log.flush()
            begin = log.tell()
            done = subprocess.run(command, cwd=self.root, text=True, stdout=subprocess.PIPE,
                                  stderr=log)
            log.seek(begin)
            done.stderr = log.read()
        if check and done.returncode != 0:
            sys.exit("mutants: %s failed; see %s" % (" ".join(command), self.log))
        return done

    def programs(self, profiles):
        """The tests of //tests that run on hostcuda as one of the profiles: label, program and
        profile, all of the first profile first."""
        found = self.bazel("query", "kind(driver_test, //tests/...)", "--output=xml").stdout
        programs = []
        for rule in xml.etree.ElementTree.fromstring(found).iter("rule"):
            values = {tag.get("name"): tag.get("value") for tag in rule}
            profile = values.get("profile") or "h200"
            if (values.get("driver") or "host") == "host" and profile in profiles:
                programs.append((profiles.index(profile), rule.get("name"), values["binary"]))
        return [(label, binary, profiles[n]) for n, label, binary in sorted(programs)]

    def build(self, count, dropped, targets):
        """Builds with as many mutants, dropping those that do not compile; returns those left."""
        for compile_all in (self.check_headers, lambda _: self.build_targets(targets)):
            while True:
                mutants = self.choose(count, dropped)
                self.write(mutants)
                errors = compile_all(mutants)
                bad = to_blame(errors, mutants)
                if not bad:
                    break
                for m in bad:
                    print("does not compile: %s" % m, flush=True)
                dropped |= {m.number for m in bad}
        if errors:
            sys.exit("mutants: the build fails, and no mutant's line is named; see %s" % self.log)
        return mutants

    def build_targets(self, targets):
        # As the sanitizers of our CI: an index out of range ends the program.
        built = self.bazel("build", "--copt=-D_GLIBCXX_ASSERTIONS",
                           "--keep_going", "--jobs=%d" % self.jobs, "--color=no",
                           "--curses=no", "--noshow_progress", *targets,
                           "//hostcuda:libcuda.so.1", check=False)
        return built.stderr if built.returncode else ""

    def check_headers(self, mutants):
        """The errors in headers that hold mutants, so that not all that includes them is compiled
        in vain. What it does not find, because it knows too few folders of headers, Bazel does."""
        include = self.root.parent / "include"
        include.mkdir(exist_ok=True)
        if not (include / "stillmap").exists():
            (include / "stillmap").symlink_to(self.root)
        folders = [include, self.root, self.root / "hostcuda" / "include"]
        if "CUDA_HOME" in os.environ:
            folders.append(pathlib.Path(os.environ["CUDA_HOME"]) / "include")
        command = ["g++", "-std=c++20", "-fsyntax-only", "-w", *("-I%s" % f for f in folders),
                   "-x", "c++"]

        def check(path):
            return "ERROR: " + subprocess.run([*command, path], cwd=self.root, text=True,
                                              stderr=subprocess.PIPE).stderr

        headers = sorted({m.path for m in mutants if m.path.endswith(".h")})
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            return "\n".join(pool.map(check, headers))


def to_blame(output, mutants):
    """The mutants that the compiler's errors name: by their lines, by their statements, or by what
    instantiated a template; each failed compilation names one."""
    def named(places, lines_of):
        return [m for m in mutants for path, line in places
                if (path == m.path or path.endswith("/" + m.path))
                and lines_of(m.candidate)[0] <= line <= lines_of(m.candidate)[1]]

    bad = []
    for action in re.split(r"^ERROR: ", output, flags=re.MULTILINE):
        errors = [(path, int(line)) for path, line in ERROR.findall(action)]
        places = [(path, int(line)) for path, line in PLACE.findall(action)]
        if errors:
            bad += (named(errors, lambda c: c.lines) or named(places, lambda c: c.lines) or
                    named(places, lambda c: c.statement_lines))
    return sorted({m.number: m for m in bad}.values(), key=lambda m: m.number)
