#!/usr/bin/env python3
"""Checks which part of the project includes which: the layers of CONTRIBUTING.md.

    vmm <- {allocators, checkpoint, image} <- {handoff, process, snapshot} <- migration <- control <- tools;
    mpi on snapshot, by itself;
    hostcuda stands alone

Usage: includes.py [--self-test] [ROOT]
"""

import pathlib
import re
import sys
import tempfile

PARTS = ("vmm", "hostcuda", "allocators", "image", "checkpoint", "handoff", "process", "snapshot",
         "control", "migration", "mpi", "tools", "tests", "bench", "examples")

LIBRARIES = {"vmm", "allocators", "image", "checkpoint", "handoff", "process", "snapshot", "control",
             "migration", "mpi"}

# What each part may include of the others. Tests, benchmarks, tools and snapshot may look into hostcuda's
# own switches, which they find at run time; nobody may include hostcuda's sources.
MAY_INCLUDE = {
    "vmm": {"vmm"},
    "hostcuda": {"hostcuda"},
    "allocators": {"allocators", "vmm"},
    "image": {"image", "vmm"},
    "checkpoint": {"checkpoint", "vmm"},
    "handoff": {"handoff", "checkpoint", "vmm"},
    "migration": {"migration", "snapshot", "image", "checkpoint", "vmm"},
    "mpi": {"mpi", "snapshot", "image", "checkpoint", "vmm"},
    "process": {"process", "checkpoint", "vmm"},
    "snapshot": {"snapshot", "image", "checkpoint", "vmm", "hostcuda"},
    "control": {"control", "migration", "handoff", "snapshot", "image", "checkpoint", "vmm"},
    # Nobody needs an MPI for anything else.
    "tools": LIBRARIES - {"mpi"} | {"tools", "hostcuda"},
    "tests": LIBRARIES | {"tests", "bench", "tools", "hostcuda"},
    "bench": LIBRARIES - {"mpi"} | {"bench", "tests", "tools", "hostcuda"},
    "examples": LIBRARIES - {"mpi"} | {"examples"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
CUDA_HEADERS = re.compile(r"^(cuda[A-Za-z0-9_]*|nvml|driver_types|vector_types)\.h$")


def part_of(include, source, root):
    """Which part of the project an include names; None for somebody else's header."""
    if include.startswith("stillmap/"):
        include = include[len("stillmap/"):]
    first = include.split("/")[0]
    if "/" in include and first in PARTS:
        return first
    beside = (source.parent / include).resolve()
    if beside.exists() and root in beside.parents:
        return beside.relative_to(root).parts[0]
    return None


def may_include_cuda(relative):
    """<cuda.h>: hostcuda, the driver seam, and code that calls a driver directly to test it."""
    part = relative.parts[0]
    if part == "vmm":
        return relative.name.startswith("driver")
    return part in ("hostcuda", "tests", "bench")


def check_file(path, root):
    relative = path.relative_to(root)
    part = relative.parts[0]
    problems = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, include = match.groups()
        where = "%s:%d: " % (relative, number)
        target = part_of(include, path, root)
        if target is None:
            if CUDA_HEADERS.match(include) and not may_include_cuda(relative):
                problems.append(where + "only vmm/driver* includes <%s>" % include)
            continue
        if target not in MAY_INCLUDE[part]:
            problems.append(where + "%s must not include %s (%s)" % (part, target, include))
        light = ("vmm/error.h", "vmm/units.h", "vmm/driver_types.h")
        if part == "image" and target == "vmm" and not include.endswith(light):
            problems.append(where + "image needs no driver: of vmm only %s" % ", ".join(light))
        if part != "hostcuda" and include.startswith("hostcuda/src/"):
            problems.append(where + "hostcuda/src is hostcuda's own")
        if target in LIBRARIES and (quote != '"' or not include.startswith("stillmap/")):
            problems.append(where + 'write "stillmap/%s/..."' % target)
    return problems


def check_tree(root):
    root = root.resolve()
    problems = []
    files = 0
    for part in PARTS:
        for path in sorted((root / part).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cc", ".cu", ".cuh") and path.is_file():
                files += 1
                problems += check_file(path, root)
    return files, problems


def self_test():
    """Plants one violation of each rule, and a clean file beside it."""
    cases = [
        ("vmm/page.h", '#include "stillmap/vmm/units.h"', None),
        ("vmm/page.h", "#include <cuda.h>", "only vmm/driver*"),
        ("vmm/driver/load.cpp", "#include <cuda.h>", None),
        ("vmm/page.h", '#include "hostcuda/hostcuda.h"', "vmm must not include hostcuda"),
        ("vmm/page.h", '#include "stillmap/allocators/a.h"', "vmm must not include allocators"),
        ("vmm/page.h", '#include "units.h"', 'write "stillmap/vmm/..."'),
        ("vmm/page.h", "#include <stillmap/vmm/units.h>", 'write "stillmap/vmm/..."'),
        ("allocators/a.h", '#include "stillmap/checkpoint/c.h"', "must not include checkpoint"),
        ("checkpoint/c.h", '#include "stillmap/allocators/a.h"', "must not include allocators"),
        ("checkpoint/c.h", '#include "stillmap/vmm/units.h"', None),
        ("image/i.h", '#include "stillmap/vmm/error.h"', None),
        ("image/i.h", '#include "stillmap/vmm/device.h"', "image needs no driver"),
        ("image/i.h", '#include "stillmap/checkpoint/c.h"', "must not include checkpoint"),
        ("snapshot/s.h", '#include "stillmap/checkpoint/image/reader.h"', None),
        ("checkpoint/c.h", '#include "stillmap/handoff/h.h"', "must not include handoff"),
        ("snapshot/s.h", '#include "stillmap/migration/m.h"', "must not include migration"),
        ("handoff/h.h", '#include "stillmap/vmm/units.h"', None),
        ("control/c.h", '#include "stillmap/snapshot/s.h"', None),
        ("control/c.h", '#include "stillmap/migration/m.h"', None),
        ("migration/m.h", '#include "stillmap/control/c.h"', "must not include control"),
        ("handoff/h.h", '#include "stillmap/control/c.h"', "must not include control"),
        ("mpi/m.h", '#include "stillmap/snapshot/s.h"', None),
        ("snapshot/s.h", '#include "stillmap/mpi/m.h"', "must not include mpi"),
        ("tools/stillmap/t.cpp", '#include "stillmap/mpi/m.h"', "must not include mpi"),
        ("process/p.h", '#include "stillmap/handoff/h.h"', "must not include handoff"),
        ("hostcuda/src/a.cpp", '#include "stillmap/vmm/units.h"', "must not include vmm"),
        ("hostcuda/src/a.cpp", "#include <cuda.h>", None),
        ("tests/unit/a_test.cpp", '#include "hostcuda/src/machine.h"', "hostcuda's own"),
        ("tests/unit/a_test.cpp", '#include "hostcuda/hostcuda.h"', None),
        ("tools/stillmap/main.cpp", "#  include <cuda.h>", "only vmm/driver*"),
        ("examples/e.cpp", '#include "tests/support/s.h"', "must not include tests"),
    ]
    wrong = 0
    for name, line, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "vmm").mkdir()
            (root / "vmm" / "units.h").write_text("#pragma once\n")
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(line + "\n")
            _, problems = check_tree(root)
        good = not problems if expected is None else any(expected in p for p in problems)
        if not good:
            wrong += 1
            print("self-test: %s with %s gave %s" % (name, line, problems), file=sys.stderr)
    print("includes: self-test, %d cases, %d wrong" % (len(cases), wrong))
    return wrong


def main():
    arguments = sys.argv[1:]
    if "--self-test" in arguments:
        arguments.remove("--self-test")
        if self_test():
            return 1
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parents[2])
    files, problems = check_tree(root)
    for problem in problems:
        print(problem, file=sys.stderr)
    print("includes: %d files, %d problems" % (files, len(problems)))
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
