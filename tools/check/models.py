#!/usr/bin/env python3
"""Checks the models of docs/models/ with SPIN: of ownership, migration.pml, group.pml and handoff.pml, and of who gets
memory of a shared limit, admission.pml.

  1. The protocol as it is: every state within the bounds is searched, and every property holds.
  2. The protocol without one of its rules, as it once was: SPIN finds what goes wrong.
  3. The code: tests of ownership note their steps, and the model must be able to take the same ones
     in the same order. Of each run, it must not be able to take them with two steps exchanged whose
     order matters, so that the comparison means something.

--counterexample RULE prints the steps that break the protocol without that rule.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIGRATION, HANDOFF = ROOT / "docs/models/migration.pml", ROOT / "docs/models/handoff.pml"
ADMISSION, GROUP = ROOT / "docs/models/admission.pml", ROOT / "docs/models/group.pml"
DRIVER = ROOT / "bazel-bin/hostcuda/libcuda.so.1"

# What is left out, and with which bounds: the rules of the models' head comments.
PROTOCOL = [
    (MIGRATION, ["CRASHES=2"], "migration: two crashes, three migrations"),
    (MIGRATION, ["CRASHES=0", "RESTORED"],
     "migration: the destination's records are restored from a copy; the epochs differ"),
    (MIGRATION, ["CRASHES=0", "DELETIONS=1"],
     "migration: the lock file of a record is deleted while a process holds it"),
    (GROUP, ["N=4", "CRASHES=2"], "group: four tasks, two ends of processes"),
    (HANDOFF, [], "handoff: either process dies at any moment"),
    (HANDOFF, ["LIES"], "handoff: the receiver writes into the word before the offer"),
    (ADMISSION, ["STARTS=3", "LIMIT=2", "HOLD"], "admission: three requests beside held memory"),
    (ADMISSION, ["STARTS=4", "LIMIT=2", "PRIORITY=1", "DEADLINES"],
     "admission: four requests of two priorities, with deadlines"),
    (ADMISSION, ["STARTS=4", "LIMIT=2", "PRIORITY=1", "MAX_OVERTAKEN=2"],
     "admission: two grants may overtake a wait"),
    (ADMISSION, ["STARTS=3", "LIMIT=3", "MINIMUM=1", "PRIORITY=1", "HOLD"], "admission: a minimum"),
    (ADMISSION, ["STARTS=3", "LIMIT=2", "MINIMUM=1", "JOINS=1", "DEATHS=1", "HOLD"],
     "admission: a minimum that comes late, and a death"),
    (ADMISSION, ["STARTS=3", "LIMIT=2", "DEATHS=1", "STOPS=1", "DEADLINES"],
     "admission: a death, a stop, and deadlines"),
    (ADMISSION, ["STARTS=3", "LIMIT=2", "DEATHS=1", "STOPS=1", "SLOW_ANSWERS"],
     "admission: a death or stop between giving memory and the answer"),
    (ADMISSION, ["LIVE", "LIMIT=2"], "admission: every wait ends, with any number of requests"),
    (ADMISSION, ["LIVE", "LIMIT=2", "MOST=1", "PRIORITY=1"],
     "admission: every wait ends, with two priorities"),
    (ADMISSION, ["LIVE", "LIMIT=2", "MOST=1", "DEATHS=1", "JOINS=1", "MINIMUM=1"],
     "admission: every wait ends, with a death and a minimum that comes late"),
    (ADMISSION, ["LIVE", "LIMIT=2", "MOST=1", "STOPS=1", "DEADLINES"],
     "admission: every wait ends, with one that is stopped for ever"),
    (ADMISSION, ["LIVE", "LIMIT=3", "SETS=2"], "admission: tasks that evict each other compute"),
]
# What takes minutes: with --deep.
DEEP = [
    (MIGRATION, ["CRASHES=1", "DELETIONS=1"], "migration: the same, and one crash"),
    (GROUP, ["N=4", "CRASHES=3"], "group: four tasks, three ends of processes"),
    (ADMISSION, ["STARTS=3", "LIMIT=3", "HOLD"], "admission: three requests for three units"),
    (ADMISSION, ["STARTS=4", "LIMIT=3", "PRIORITY=1", "DEADLINES"],
     "admission: two priorities, with deadlines and three units"),
    (ADMISSION, ["STARTS=3", "LIMIT=3", "MINIMUM=1", "JOINS=1", "DEATHS=1", "HOLD"],
     "admission: a minimum that comes late, a death, and three units"),
    (ADMISSION, ["STARTS=3", "LIMIT=2", "HOLD", "SLOW_ANSWERS"],
     "admission: steps between giving memory and the answer"),
    (ADMISSION, ["LIVE", "LIMIT=3"], "admission: every wait ends, with three units"),
]
TWO_OWNERS, IN_DOUBT = "two owners", "in doubt for ever"
HALF = "some tasks of a group move, and others stay"
BEYOND_LIMIT, NO_MINIMUM = "more than the limit is reserved", "a request within the minimum is refused"
DELAYED, OVERTAKEN = "a wait is delayed by one that comes later", "a wait is overtaken too often"
TAKEN = "evictable memory is taken from one that waits longer"
NO_END, NO_PROGRESS = "a wait never ends", "tasks evict each other for ever"
BROKEN = [
    (MIGRATION, ["NO_LIST", "CRASHES=2"], TWO_OWNERS),
    (MIGRATION, ["ANY_MACHINE", "CRASHES=2"], TWO_OWNERS),
    (MIGRATION, ["UNLOCKED", "CRASHES=2"], TWO_OWNERS),
    (MIGRATION, ["NO_OFFER", "CRASHES=2"], IN_DOUBT),
    (MIGRATION, ["LOCKED_READS", "CRASHES=2"], IN_DOUBT),
    (MIGRATION, ["SAME_EPOCH", "RESTORED", "CRASHES=1"], TWO_OWNERS),
    (MIGRATION, ["UNCHECKED", "DELETIONS=1", "CRASHES=0"], TWO_OWNERS),
    (GROUP, ["NO_INTENTS"], HALF),
    (GROUP, ["OVERWRITTEN"], HALF),
    (GROUP, ["OWN_DECISION"], TWO_OWNERS),
    (GROUP, ["RESUMED"], HALF),
    (GROUP, ["FORGETS", "CRASHES=2"], HALF),
    (GROUP, ["PATIENT"], IN_DOUBT),
    (HANDOFF, ["IMPATIENT"], TWO_OWNERS),
    (HANDOFF, ["BELIEVES"], TWO_OWNERS),
    (HANDOFF, ["NO_WORD"], TWO_OWNERS),
    (HANDOFF, ["EARLY", "LIES"], TWO_OWNERS),
    (ADMISSION, ["OUTSIDE_LOCK", "STARTS=4", "LIMIT=2"], BEYOND_LIMIT),
    (ADMISSION, ["NO_MINIMUM_KEPT", "STARTS=3", "LIMIT=2", "MINIMUM=1"], NO_MINIMUM),
    (ADMISSION, ["NO_LEAVE_FOR_EARLIER", "STARTS=4", "LIMIT=2"], DELAYED),
    (ADMISSION, ["NO_OVERTAKE_BOUND", "STARTS=4", "LIMIT=2", "PRIORITY=1"], OVERTAKEN),
    (ADMISSION, ["ASK_BEFORE_OTHERS", "STARTS=3", "LIMIT=2", "HOLD"], TAKEN),
    (ADMISSION, ["ASK_BEFORE_OTHERS", "LIVE", "LIMIT=3", "SETS=2"], NO_PROGRESS),
    (ADMISSION, ["NO_ASK_AFTER_OVERTAKING", "LIVE", "LIMIT=2", "MOST=1", "PRIORITY=1"], NO_END),
    (ADMISSION, ["ANY_IS_BUSY", "LIVE", "LIMIT=2", "MOST=1"], NO_END),
    (ADMISSION, ["NO_ANSWER_WHILE_WAITING", "LIVE", "LIMIT=2", "MOST=1"], NO_END),
    (ADMISSION, ["NO_LOOK_AGAIN", "LIVE", "LIMIT=2", "MOST=1"], NO_END),
    (ADMISSION, ["RINGS_ONLY", "LIVE", "LIMIT=2", "MOST=1"], NO_END),
    (ADMISSION, ["NO_DEAD_REMOVAL", "LIVE", "LIMIT=2", "MOST=1", "DEATHS=1"], NO_END),
    (ADMISSION, ["NO_DEADLINE", "LIVE", "LIMIT=2", "MOST=1", "STOPS=1", "DEADLINES"], NO_END),
]
# What a violated assertion says: a part of its text.
MEANINGS = {
    MIGRATION: [("state[", IN_DOUBT), ("", TWO_OWNERS)],
    GROUP: [("stays", HALF), ("record[", IN_DOUBT), ("", TWO_OWNERS)],
    HANDOFF: [("", TWO_OWNERS)],
    ADMISSION: [("acceptance cycle", NO_END), ("granted", NO_MINIMUM), ("delays[", OVERTAKEN),
                ("kind[", TAKEN), ("ticket[", DELAYED), ("reserved[0]+reserved[1]", BEYOND_LIMIT)],
}


def meaning_of(model, defines, violated):
    if violated is None:
        return None
    if "acceptance cycle" in violated and any(d.startswith("SETS") for d in defines):
        return NO_PROGRESS
    return next((what for part, what in MEANINGS[model] if part in violated), violated)


class Traced(typing.NamedTuple):
    """Tests that note their steps, and the model that must be able to take them."""
    model: pathlib.Path
    program: str
    tests: str
    ends: list
    events: dict  # what the tests note, step_names.cpp: its number in the model
    exchanged: tuple  # two steps that a run may not have in the other order
    defines: typing.Callable  # of a run


TRACED = [
    Traced(MIGRATION, "migration",
           "dying.*AtEvery*:disputed.*:deleted_lock.*-*restored*:*taken_back*",
           ["source", "destination", "third"],
           {"reserved": 1, "awaiting commit": 2, "intent recorded": 3, "ownership recorded": 4,
            "running recorded": 5, "released": 6, "kept": 7, "killed": 8,
            "lock deleted": 9},
           ("intent recorded", "ownership recorded"),
           lambda steps: ["CRASHES=%d" % steps.count("killed"),
                          "DELETIONS=%d" % steps.count("lock deleted"),
                          "SESSIONS=%d" % max(3, steps.count("reserved"))]),
    Traced(HANDOFF, "handoff", "handoff_test.memory_arrives*:handoff_test.killing*",
           ["sender", "receiver"],
           {"idle": 1, "committed": 2, "released": 3, "kept": 4, "has nothing": 5, "killed": 6},
           ("idle", "committed"), lambda steps: []),
]


class Failed(Exception):
    pass


def run(command, **options):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **options)
    return done.returncode, done.stdout


def optimization(model, defines, events):
    """What takes the compiler and the search together the least time."""
    if events is not None or (model, defines) in [(m, d) for m, d, _ in BROKEN if m == ADMISSION]:
        return "-O0"
    return "-O1" if model == ADMISSION else "-O2"


def search(folder, model, defines, events=None):
    """All states of the model, or those of its runs with these numbers of events. With LIVE also its cycles, in which
    every process that can take a step takes one. Returns the violated assertion, or None, and the number of
    states."""
    live = "LIVE" in defines
    if events is not None:
        lines = ["#define EVENTS %d" % len(events),
                 "byte events[EVENTS] = { %s };" % ", ".join(map(str, events))]
        (folder / "events.h").write_text("\n".join(lines) + "\n")
    (folder / model.name).write_text(model.read_text())
    status, said = run(["spin", "-a"] + ["-D" + d for d in defines] + [model.name], cwd=folder)
    if status != 0 or "Error" in said:
        raise Failed("spin: " + said)
    flags = [optimization(model, defines, events), "-DNFAIR=3" if live else "-DSAFETY", "-DCOLLAPSE",
             "-DMEMLIM=6000", "-w"]
    status, said = run(["gcc"] + flags + ["-o", "pan", "pan.c"], cwd=folder)
    if status != 0:
        raise Failed("gcc: " + said)
    # A run that is compared may end anywhere.
    status, said = run(["./pan", "-m2000000" if live else "-m1000000", "-n"] + (
        ["-a", "-f"] if live else []) + (["-E"] if events is not None else []), cwd=folder)
    states = re.search(r"(\d+) states, stored", said)
    if states is None or "max search depth too small" in said or "Search not completed" in said and (
            "errors: 0" in said):
        raise Failed("the search is not complete:\n" + said)
    violated = re.search(r"pan:1: (.*)", said)
    if violated is None and "errors: 0" not in said:
        raise Failed(said)
    return violated and violated.group(1), int(states.group(1))


def each(call, cases):
    """The results of call(case) in the order of the cases, one for each processor at a time: SPIN uses one."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(call, cases)


def search_apart(folder, *arguments):
    """search() in a folder of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        return search(pathlib.Path(own), *arguments)


def check_protocol(folder, deep):
    failed = 0
    protocol = PROTOCOL + (DEEP if deep else [])
    found = each(lambda case: search_apart(folder, *case[:2]), protocol + BROKEN)
    for _, _, what in protocol:
        violated, states = next(found)
        failed += violated is not None
        print("%s  %s: %d states, complete%s" % (
            "ok    " if violated is None else "FAILED", what, states,
            "" if violated is None else "; " + violated), flush=True)
    for model, defines, what in BROKEN:
        violated, states = next(found)
        ok = meaning_of(model, defines, violated) == what
        failed += not ok
        print("%s  %s without the rule %s: %s" % (
            "ok    " if ok else "FAILED", model.stem, defines[0],
            "%s, found after %d states" % (what, states) if ok else "not found; %s" % violated),
            flush=True)
    return failed


def real_runs(folder, traced):
    """The events of each run of the tests, without repetitions."""
    noted = folder / (traced.program + ".txt")
    environment = {**os.environ, "STILLMAP_MODEL_EVENTS": str(noted), "TEST_TMPDIR": str(folder),
                   "STILLMAP_DRIVER": "host", "STILLMAP_HOSTCUDA": str(DRIVER),
                   "HOSTCUDA": "profile=h200"}
    program = ROOT / "bazel-bin/tests" / (traced.program + "_program")
    status, said = run([str(program), "--gtest_filter=" + traced.tests], env=environment)
    if status != 0:
        raise Failed("the tests fail:\n" + said)
    runs = []
    for line in noted.read_text().splitlines():
        what, _, where = line.strip().rpartition(" ")
        if not what:
            runs.append([])
        elif what in traced.events and (what, where) != (runs[-1][-1] if runs[-1] else None):
            runs[-1].append((what, where))
    distinct = {tuple(r) for r in runs if r}
    return sorted(distinct, key=lambda r: (len(r), r)), len(runs)


def accepts(folder, traced, events):
    numbers = [traced.events[what] * len(traced.ends) + traced.ends.index(where)
               for what, where in events]
    defines = traced.defines([what for what, _ in events])
    violated, _ = search_apart(folder, traced.model, ["TRACE"] + defines, numbers)
    return violated is not None and "next" in violated


def exchange(events, first, second):
    """The same events with these two steps in the other order; None: one is missing."""
    steps = [what for what, _ in events]
    if first not in steps or second not in steps:
        return None
    out = list(events)
    a, b = steps.index(first), steps.index(second)
    out[a], out[b] = out[b], out[a]
    return out


def check_code(folder, traced):
    runs, total = real_runs(folder, traced)
    wrong = [exchange(events, *traced.exchanged) for events in runs]
    cases = runs + [events for events in wrong if events is not None]
    accepted = list(each(lambda events: accepts(folder, traced, events), cases))
    failed, rejected = 0, len(cases) - len(runs)
    for number, events in enumerate(cases):
        text = ", ".join("%s: %s" % (where, what) for what, where in events)
        if number < len(runs) and not accepted[number]:
            failed += 1
            print("FAILED  the model cannot do what the code did: " + text, flush=True)
        if number >= len(runs) and accepted[number]:
            failed += 1
            print("FAILED  the model accepts '%s' after '%s': %s" % (*traced.exchanged, text),
                  flush=True)
    print("%s  %s: %d runs of the code, %d of them different: the model takes the same steps; %d with "
          "two steps exchanged are not accepted" % (
              "ok    " if failed == 0 else "FAILED", traced.program, total, len(runs), rejected),
          flush=True)
    return failed + (rejected == 0)


def counterexample(folder, rule):
    found = [(model, defines) for model, defines, _ in BROKEN if defines[0] == rule]
    if not found:
        raise Failed("no rule %s; there are: %s" % (rule, ", ".join(d[0] for _, d, _ in BROKEN)))
    model, defines = found[0]
    search(folder, model, defines)
    lines = model.read_text().splitlines()
    _, said = run(["spin"] + ["-D" + d for d in defines] + ["-k", model.name + ".trail", "-p", "-g",
                                                           model.name], cwd=folder)
    # Of the rest of a step, and not of the state.
    hidden = [name for names in re.findall(r"^hidden \w+ (.*);", model.read_text(), re.M)
              for name in names.split(", ")]
    values, before, printed = {}, {}, None
    for line in said.splitlines():
        if "START OF CYCLE" in line:
            print("-- from here on it repeats itself --")
        step = re.match(r"\s*\d+:\s+proc\s+(\d+) \((?:\w+).*\.pml:(\d+) ", line)
        value = re.match(r"\s+(\w+(?:\[\d+\])?) = (\d+)$", line)
        if value and value.group(1) not in hidden:
            values[value.group(1)] = value.group(2)
        elif step:
            changes = ["%s = %s" % (k, v) for k, v in values.items() if before.get(k) != v]
            if changes:
                print("        " + ", ".join(changes))
            before = dict(values)
            text = lines[int(step.group(2)) - 1].strip()
            if text.startswith("::") and text not in (":: else", ":: else ->"):
                text = "process %s %s" % (step.group(1), text)
                if text != printed:
                    print(text)
                printed = text
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--counterexample", metavar="RULE", help="a macro of a model")
    parser.add_argument("--deep", action="store_true", help="also search what takes minutes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        try:
            if arguments.counterexample:
                return counterexample(folder, arguments.counterexample)
            failed = check_protocol(folder, arguments.deep) + sum(check_code(folder, t) for t in TRACED)
        except Failed as why:
            print("models: %s" % why)
            return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
