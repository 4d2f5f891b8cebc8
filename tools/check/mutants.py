#!/usr/bin/env python3
"""Says which share of random mistakes in the libraries the tests catch.

A mutant is the library with one small mistake: `<` for `<=`, a call left out, a condition negated
(mutation/operators.py lists them all). All mutants are compiled into one build; STILLMAP_MUTANT=17
in the environment switches number 17 on, in child processes too.

  1. The sources of the commit are cloned into the work folder, and mutants are drawn at random.
  2. Bazel builds the tests. Mutants that do not compile are dropped, others are drawn for them.
  3. Baseline: each test case runs by itself with no mutant. It tells how long the case takes and
     which mutants it reaches. Cases that fail, skip, or take too long are left out.
  4. Each mutant runs the cases that reach it, quick programs first, until one fails. Cases of more
     than --budget seconds in all are left out, the longest first. A failure counts where it happens
     again; a crash, a hang and too much memory are failures.

The same seed, count, modules and commit give the same mutants. Mutants that no case reaches and
mutants that change nothing that can be seen survive: judge the survivors by hand.

The work folder keeps plan.json (what was drawn), baseline.json and results.json, which is written
after each mutant. --resume goes on where a run was interrupted.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mutation.suite import Program, Suite  # noqa: E402
from mutation.tree import Tree  # noqa: E402

MODULES = "vmm,allocators,checkpoint,bench/replay,image,snapshot,handoff,migration,control,process,mpi"


def write_json(path, value):
    """Whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1) + "\n")
    new.replace(path)


def describe(result):
    place = "%4d %s:%d %s: %s -> %s" % tuple(
        result[key] for key in ("number", "file", "line", "operator", "before", "after"))
    if result["caught"]:
        return "%s\n       caught by %s %s: %s (%.1f s)" % (
            place, result["by"], result["case"], result["how"], result["seconds"])
    if not result["cases"] and not result["over_budget"]:
        return "%s\n       SURVIVED: no case reaches it" % place
    return "%s\n       SURVIVED %d cases (%.1f s)%s%s" % (
        place, result["cases"], result["seconds"],
        ", %d more over the budget" % result["over_budget"] if result["over_budget"] else "",
        "; unsteady: " + ", ".join(result["unsteady"]) if result["unsteady"] else "")


def report(header, results, left_out):
    caught = sum(r["caught"] for r in results)
    print("\nSurvivors:")
    for r in sorted(results, key=lambda r: (r["file"], r["line"])):
        if not r["caught"]:
            print(describe(r) + "\n       | " + r["source"])
    by_how = {}
    for r in results:
        module = r["file"].split("/")[0]
        for key in (r["operator"], module + "/"):
            by_how.setdefault(key, []).append(r["caught"])
    print()
    for key, all_of in sorted(by_how.items(), key=lambda item: (item[0].endswith("/"), item[0])):
        print("  %-14s %3d of %3d caught" % (key, sum(all_of), len(all_of)))
    print("left out of the baseline: %d cases, of which %d skipped" % (
        len(left_out), sum(how == "skipped" for _, _, how in left_out)))
    unreached = sum(not r["caught"] and not r["cases"] and not r["over_budget"] for r in results)
    print("mutants: seed %s, commit %s: %d of %d caught, %.1f %%; %d survived, no case reaches %d"
          % (header["seed"], header["commit"][:10], caught, len(results),
             100 * caught / max(1, len(results)), len(results) - caught, unreached))


def read_arguments():
    here = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=None, help="of the draw; random by default")
    parser.add_argument("--count", type=int, default=300, help="how many mutants")
    parser.add_argument("--modules", default=MODULES,
                        help="folders, with commas; default: %(default)s")
    parser.add_argument("--tree", type=pathlib.Path, default=here,
                        help="the checkout to clone; default: the one this script is in")
    parser.add_argument("--commit", default="HEAD",
                        help="of --tree; default: what it has checked out")
    parser.add_argument("--work", type=pathlib.Path, default=None,
                        help="default: out/mutants in --tree")
    parser.add_argument("--profiles", default="h200,vgpu-no-vmm,multi:2",
                        help="machines that hostcuda is; default: %(default)s")
    parser.add_argument("--programs", default="",
                        help="only test programs with one of these, with commas, in their names")
    parser.add_argument("--without", default="", help="no test programs with one of these")
    parser.add_argument("--budget", type=float, default=60,
                        help="seconds of test cases for a mutant; default: %(default)s")
    parser.add_argument("--longest-case", type=float, default=30, help="seconds for a case")
    parser.add_argument("--longest-program", type=float, default=60,
                        help="seconds, over which a program runs on the first profile only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("--list", action="store_true", help="only draw and print")
    parser.add_argument("--only", default="",
                        help="with --resume: test only these numbers, with commas, once more")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --work")
    arguments = parser.parse_args()
    arguments.tree = arguments.tree.resolve()
    arguments.work = (arguments.work or arguments.tree / "out" / "mutants").resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    arguments.commit = subprocess.run(
        ["git", "-C", str(arguments.tree), "rev-parse", arguments.commit + "^{commit}"],
        check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(10**6)
    return arguments


def main():
    arguments = read_arguments()
    plan_file, baseline_file, results_file = (
        arguments.work / name for name in ("plan.json", "baseline.json", "results.json"))
    plan = {"dropped": []}
    if arguments.resume:
        plan = json.loads(plan_file.read_text())
        for name in ("seed", "count", "modules", "commit", "profiles", "programs", "without"):
            setattr(arguments, name, plan[name])
    tree = Tree(arguments)
    plan.update(seed=arguments.seed, count=arguments.count, modules=arguments.modules,
                commit=tree.commit, profiles=arguments.profiles,
                programs=arguments.programs, without=arguments.without)
    print("mutants: seed %d, count %d, commit %s, of %d candidates in %s" % (
        arguments.seed, arguments.count, tree.commit[:10], len(tree.candidates),
        ", ".join(tree.modules)),
        flush=True)
    if arguments.list:
        for mutant in tree.choose(arguments.count, set(plan["dropped"])):
            print(mutant)
        return 0
    if not arguments.resume:
        for file in (plan_file, baseline_file, results_file):
            file.unlink(missing_ok=True)

    began = time.monotonic()
    chosen = choose_programs(tree, arguments)
    dropped = set(plan["dropped"])
    mutants = tree.build(arguments.count, dropped, [label for label, _, _ in chosen])
    plan["dropped"] = sorted(dropped)
    write_json(plan_file, plan)
    tree_bin = pathlib.Path(tree.bazel("info", "bazel-bin").stdout.strip())
    print("built with %d mutants in %.0f s" % (len(mutants), time.monotonic() - began), flush=True)

    suite = Suite([Program(*program, tree_bin) for program in chosen], arguments)
    results = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        try:
            if baseline_file.exists():
                suite.load(json.loads(baseline_file.read_text()))
            else:
                suite.baseline(pool)
                write_json(baseline_file, suite.save())
            if results_file.exists():
                results = json.loads(results_file.read_text())["mutants"]
            test_all(arguments, suite, mutants, pool, results,
                     lambda: write_json(results_file, {**plan, "mutants": results}))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            sys.exit("mutants: interrupted; --resume goes on")
    report(plan, results, suite.left_out)
    return 0


def choose_programs(tree, arguments):
    only, without = arguments.programs.split(","), [w for w in arguments.without.split(",") if w]
    return [found for found in tree.programs(arguments.profiles.split(","))
            if any(o in found[0] for o in only) and not any(w in found[0] for w in without)]


def test_all(arguments, suite, mutants, pool, results, save):
    """Tests what has no result yet, or what --only names; appends to `results`."""
    only = {int(n) for n in arguments.only.split(",") if n}
    results[:] = [r for r in results if r["number"] not in only]
    done = {r["number"] for r in results}
    lock = threading.Lock()

    def test(mutant):
        result = suite.test(mutant)
        with lock:
            results.append(result)
            save()
            print("%3d/%d %s" % (len(results), len(mutants), describe(result)), flush=True)

    list(pool.map(test, [m for m in mutants
                         if m.number not in done and (not only or m.number in only)]))


if __name__ == "__main__":
    sys.exit(main())
