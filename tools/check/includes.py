#!/usr/bin/env python3
"""Checks the includes of all C++ sources: which module may use which, and that no files form a circle.

The libraries and what each may use are read from tools/build/modules.bzl. Above them stand tools,
bench, examples, python and tests, with libraries of their own that are not installed (bench/replay);
hostcuda stands alone. The rules:

  arrow      a file includes only its own module and those that its module may use
  internal   a header of an internal folder is included by its own module only, and by modules in that
             module's folder; never by a header that is installed. Of the programs, tests, benchmarks,
             the command and the Python module may include it
  driver     <cuda.h> is included by vmm/driver, hostcuda, tests and benchmarks only
  spelling   a header that is installed is included as "stillmap/<path>"; each that is named exists
  first      a source includes the header of its own name first, which proves that the header compiles
             alone; a header begins with #pragma once
  circle     a header with the source of the same name is one unit; units include each other in no
             circle, of whatever length

Usage: includes.py [--self-test] [ROOT]
"""

import os
import pathlib
import re
import sys
import tempfile

MODULES_FILE = "tools/build/modules.bzl"
PROGRAMS = ("tools", "tests", "bench", "examples", "python")
SUFFIXES = (".h", ".cpp", ".c", ".cc", ".cu", ".cuh")

# Modules that only the named parts may use: no other user of Stillmap needs an MPI or UCX.
RESTRICTED = {"checkpoint/mpi": ("tests",), "checkpoint/ucx": ("bench", "tests", "tools")}

# The one header whose path is not its include: programs in C know no modules.
C_API = ("stillmap/c_api.h", "c_api/c_api.h")

MODULE = re.compile(r'^    "([a-z_/]+)": \[(.*)\],$')
LIST = re.compile(r"^(STILLMAP_[A-Z_]+) = \{$")
FOLDERS = re.compile(r"^STILLMAP_INTERNAL_FOLDERS = \[(.*)\]$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)
CUDA_HEADER = re.compile(r"^(cuda[A-Za-z0-9_]*|nvml|driver_types|vector_types)\.h$")


def read_modules(root):
    """The libraries with what each may use, those of programs likewise, and the names of internal
    folders, from modules.bzl."""
    lists, internal = {}, ()
    for line in (root / MODULES_FILE).read_text().splitlines():
        if match := LIST.match(line):
            modules = lists.setdefault(match.group(1), {})
        elif match := MODULE.match(line):
            modules[match.group(1)] = set(re.findall(r'"([^"]+)"', match.group(2)))
        elif match := FOLDERS.match(line):
            internal = tuple(re.findall(r'"([^"]+)"', match.group(1)))
    if set(lists) != {"STILLMAP_MODULES", "STILLMAP_TOOL_MODULES"} or not internal:
        raise SystemExit("includes: %s has no list of modules" % MODULES_FILE)
    return lists["STILLMAP_MODULES"], lists["STILLMAP_TOOL_MODULES"], internal


class Tree:
    """The C++ files below a root, and what each includes."""

    def __init__(self, root):
        self.root = root.resolve()
        self.modules, self.tool_modules, self.internal_folders = read_modules(self.root)
        self.files = {}  # path -> list of (line number, quote, include, path included or None)
        self.guarded = set()  # headers that may be included twice
        tops = sorted({module.split("/")[0] for module in self.modules}) + ["hostcuda", *PROGRAMS]
        for top in tops:
            for folder, _, names in os.walk(self.root / top):
                for name in names:
                    if name.endswith(SUFFIXES):
                        path = os.path.relpath(os.path.join(folder, name), self.root)
                        self.files[path] = []
        self.tops = set(tops)
        for path, includes in self.files.items():
            text = (self.root / path).read_text(errors="replace")
            if "#pragma once" in text or "#ifndef" in text:
                self.guarded.add(path)
            for match in INCLUDE.finditer(text):
                quote, include = match.groups()
                number = text.count("\n", 0, match.start()) + 1
                includes.append((number, quote, include, self.resolve(path, include)))

    def resolve(self, source, include):
        """The path of the project's file that an include names; None for another's header."""
        if include == C_API[0]:
            return C_API[1]
        if include.startswith("stillmap/"):
            return include[len("stillmap/"):]
        if include.startswith("hostcuda/") and "hostcuda/include/" + include in self.files:
            return "hostcuda/include/" + include
        if include in self.files or include.split("/")[0] in self.tops and "/" in include:
            return include
        beside = os.path.normpath(os.path.join(os.path.dirname(source), include))
        return beside if beside in self.files else None

    def module(self, path):
        """The library that a file belongs to, or its top folder."""
        folder = os.path.dirname(path)
        while folder:
            if folder in self.modules or folder in self.tool_modules:
                return folder
            folder = os.path.dirname(folder)
        return path.split("/")[0]

    def is_internal(self, path):
        return any(part in self.internal_folders for part in path.split("/")[:-1])

    def is_installed(self, path):
        return path.endswith(".h") and self.module(path) in self.modules and not self.is_internal(path)

    def may_use(self, module, target):
        if module == target or module == "tests":
            return True
        if module in self.modules:
            return target in self.modules[module]
        if module == "hostcuda":
            return False
        if target in RESTRICTED and module not in RESTRICTED[target]:
            return False
        # The programs and their libraries may ask a driver whether it is hostcuda; examples are for users.
        if target == "hostcuda":
            return module != "examples"
        if module in self.tool_modules:
            return target in self.tool_modules[module]
        return target in self.modules or target in self.tool_modules and module != "examples"


def may_include_cuda(path):
    return path.startswith(("vmm/driver/", "hostcuda/", "tests/", "bench/"))


def check_includes(tree, path):
    module = tree.module(path)
    top = path.split("/")[0]
    own = unit(path) + ".h"
    if path != own and own in tree.files and (not tree.files[path] or tree.files[path][0][3] != own):
        yield "%s: include %s first" % (path, own)
    if path.endswith(".h") and path not in tree.guarded:
        yield "%s: #pragma once is missing" % path
    for number, quote, include, target in tree.files[path]:
        where = "%s:%d: " % (path, number)
        if target is None:
            if CUDA_HEADER.match(include) and not may_include_cuda(path):
                yield where + "only vmm/driver/ includes <%s>" % include
            continue
        target_module = tree.module(target)
        library = target_module in tree.modules
        if target not in tree.files:
            yield where + "there is no %s" % target
            continue
        spelled = C_API[0] if target == C_API[1] else "stillmap/" + target
        if library and (quote != '"' or include != spelled):
            yield where + 'write "%s"' % spelled
        if not library and include.startswith("stillmap/"):
            yield where + 'write "%s"' % target
        if not tree.may_use(module, target_module):
            yield where + "%s must not include %s (%s)" % (module, target_module, include)
        if target.startswith("hostcuda/src/") and top not in ("hostcuda", "tests"):
            yield where + "hostcuda/src is internal to hostcuda"
        if library and tree.is_internal(target):
            if tree.is_installed(path):
                yield where + "an installed header must not include an internal one (%s)" % include
            elif not path.startswith(target_module + "/") and top not in ("tests", "bench", "tools", "python"):
                yield where + "%s is internal to %s" % (include, target_module)


def unit(path):
    return os.path.splitext(path)[0]


def circles(tree):
    """The strongly connected groups of more than one unit (Tarjan's algorithm, without recursion)."""
    graph = {}
    for path, includes in tree.files.items():
        edges = graph.setdefault(unit(path), set())
        edges.update(unit(target) for _, _, _, target in includes
                     if target in tree.files and unit(target) != unit(path))
    index, low, stack, on_stack, groups = {}, {}, [], set(), []
    for start in sorted(graph):
        if start in index:
            continue
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        work = [(start, iter(sorted(graph[start])))]
        while work:
            node, edges = work[-1]
            for other in edges:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = []
                    while not group or group[-1] != node:
                        group.append(stack.pop())
                        on_stack.discard(group[-1])
                    if len(group) > 1:
                        groups.append(sorted(group))
    for group in groups:
        lines = ["circle of %d units:" % len(group)]
        lines += ["    %s -> %s" % (node, ", ".join(sorted(graph[node] & set(group))))
                  for node in group]
        yield "\n".join(lines)


def check_tree(root):
    tree = Tree(root)
    problems = [p for path in sorted(tree.files) for p in check_includes(tree, path)]
    return len(tree.files), problems + list(circles(tree))


# The files that each case of the self-test finds.
PLANTED = (
    "vmm/base/units.h", "vmm/base/error.h", "vmm/device.h", "vmm/base/try.h", "vmm/internal/state.h",
    "vmm/driver/table.h", "allocators/a.h", "allocators/internal/i.h", "bench/replay/r.h",
    "allocators/torch/internal/i.h", "checkpoint/base/b.h", "checkpoint/base/internal/i.h",
    "checkpoint/image/internal/i.h",
    "checkpoint/common/c.h", "checkpoint/common/internal/c.h", "checkpoint/suspend/s.h",
    "checkpoint/image/reader.h", "checkpoint/snapshot/s.h", "checkpoint/handoff/h.h",
    "checkpoint/migration/m.h", "checkpoint/control/c.h", "checkpoint/process/p.h",
    "checkpoint/mpi/m.h", "hostcuda/include/hostcuda/hostcuda.h", "hostcuda/src/machine.h",
    "tools/stillmap/t.h", "tests/support/s.h", "bench/support/b.h", "c_api/c_api.h",
)

# Files with their text; and a part of the problem that they are, None where they are none.
CASES = (
    ({"vmm/page.h": '#include "stillmap/vmm/base/units.h"'}, None),
    ({"vmm/page.h": "#include <cuda.h>"}, "only vmm/driver/"),
    ({"vmm/driver/load.cpp": "#include <cuda.h>"}, None),
    ({"vmm/driver.cpp": "#include <cuda.h>"}, "only vmm/driver/"),
    ({"tools/stillmap/main.cpp": "#  include <cuda.h>"}, "only vmm/driver/"),
    ({"vmm/page.h": '#include "hostcuda/hostcuda.h"'}, "vmm must not include hostcuda"),
    ({"vmm/page.h": '#include "stillmap/allocators/a.h"'}, "vmm must not include allocators"),
    ({"vmm/base/page.h": '#include "units.h"'}, 'write "stillmap/vmm/base/units.h"'),
    ({"vmm/base/page.h": '#include "stillmap/vmm/device.h"'}, "vmm/base must not include vmm"),
    ({"vmm/page.h": "#include <stillmap/vmm/base/units.h>"}, 'write "stillmap/vmm/base/units.h"'),
    ({"vmm/page.h": '#include "stillmap/vmm/gone.h"'}, "there is no vmm/gone.h"),
    ({"c_api/b.cpp": '#include "stillmap/c_api.h"'}, None),
    ({"c_api/b.cpp": '#include "stillmap/c_api/c_api.h"'}, 'write "stillmap/c_api.h"'),
    ({"allocators/b.cpp": '#include "stillmap/c_api.h"'}, "allocators must not include c_api"),
    ({"vmm/page.h": "// included twice"}, "#pragma once is missing"),
    ({"vmm/base/units.cpp": '#include <vector>\n#include "stillmap/vmm/base/units.h"'}, "include vmm/base/units.h first"),
    # Arrows between libraries: upward, sideways and down.
    ({"allocators/b.h": '#include "stillmap/checkpoint/common/c.h"'}, "must not include checkpoint"),
    ({"allocators/b.h": '#include "bench/replay/r.h"'}, "must not include bench/replay"),
    ({"allocators/b.h": '#include "bench/support/b.h"'}, "must not include bench"),
    ({"allocators/b.cpp": "#include <hostcuda/hostcuda.h>"}, "must not include hostcuda"),
    ({"allocators/torch/b.h": '#include "bench/replay/r.h"'}, "must not include bench/replay"),
    ({"checkpoint/snapshot/b.cpp": '#include "bench/replay/r.h"'}, "must not include bench/replay"),
    # A library of the programs.
    ({"bench/replay/b.h": '#include "stillmap/allocators/a.h"\n#include "stillmap/vmm/internal/state.h"'}, None),
    ({"bench/replay/b.h": '#include "stillmap/checkpoint/common/c.h"'}, "must not include checkpoint/common"),
    ({"bench/replay/b.h": '#include "bench/support/b.h"'}, "bench/replay must not include bench"),
    ({"bench/replay/b.h": '#include "tools/stillmap/t.h"'}, "must not include tools"),
    ({"bench/replay/b.h": '#include "stillmap/bench/replay/r.h"'}, 'write "bench/replay/r.h"'),
    ({"checkpoint/common/b.h": '#include "stillmap/allocators/a.h"'}, "must not include allocators"),
    ({"checkpoint/common/b.h": '#include "stillmap/checkpoint/handoff/h.h"'}, "must not include checkpoint/handoff"),
    ({"checkpoint/common/b.h": '#include "stillmap/vmm/base/units.h"'}, None),
    ({"checkpoint/image/b.h": '#include "stillmap/vmm/base/error.h"'}, None),
    ({"checkpoint/image/b.cpp": '#include "stillmap/vmm/base/try.h"'}, None),
    ({"checkpoint/image/b.h": '#include "stillmap/vmm/device.h"'}, "checkpoint/image must not include vmm"),
    ({"checkpoint/image/b.h": '#include "stillmap/checkpoint/base/b.h"'}, None),
    ({"checkpoint/base/c.h": '#include "stillmap/vmm/device.h"'}, "checkpoint/base must not include vmm"),
    ({"checkpoint/base/c.h": '#include "stillmap/checkpoint/image/reader.h"'}, "checkpoint/base must not include checkpoint/image"),
    ({"checkpoint/image/b.h": '#include "stillmap/checkpoint/common/c.h"'}, "must not include checkpoint/common"),
    ({"checkpoint/snapshot/b.h": '#include "stillmap/checkpoint/image/reader.h"'}, None),
    ({"checkpoint/snapshot/b.cpp": "#include <hostcuda/hostcuda.h>"}, "must not include hostcuda"),
    ({"bench/replay/b.cpp": "#include <hostcuda/hostcuda.h>"}, None),
    ({"checkpoint/snapshot/b.h": '#include "stillmap/checkpoint/migration/m.h"'}, "must not include checkpoint/migration"),
    ({"checkpoint/control/b.h": '#include "stillmap/checkpoint/snapshot/s.h"\n#include "stillmap/checkpoint/migration/m.h"'}, None),
    ({"checkpoint/migration/b.h": '#include "stillmap/checkpoint/control/c.h"'}, "must not include checkpoint/control"),
    ({"checkpoint/handoff/b.h": '#include "stillmap/checkpoint/control/c.h"'}, "must not include checkpoint/control"),
    ({"checkpoint/process/b.h": '#include "stillmap/checkpoint/handoff/h.h"'}, "must not include checkpoint/handoff"),
    ({"checkpoint/mpi/b.h": '#include "stillmap/checkpoint/snapshot/s.h"'}, None),
    ({"checkpoint/snapshot/b.h": '#include "stillmap/checkpoint/mpi/m.h"'}, "must not include checkpoint/mpi"),
    ({"tools/stillmap/b.cpp": '#include "stillmap/checkpoint/mpi/m.h"'}, "must not include checkpoint/mpi"),
    # hostcuda, and the programs on top.
    ({"hostcuda/src/b.cpp": '#include "stillmap/vmm/base/units.h"'}, "must not include vmm"),
    ({"hostcuda/src/b.cpp": '#include <cuda.h>\n#include "hostcuda/src/machine.h"'}, None),
    ({"tests/vmm/b_test.cpp": '#include "hostcuda/src/machine.h"'}, None),
    ({"tools/stillmap/b.cpp": '#include "hostcuda/src/machine.h"'}, "internal to hostcuda"),
    ({"tools/stillmap/b.cpp": "#include <hostcuda/hostcuda.h>"}, None),
    ({"bench/b.cpp": '#include "tools/stillmap/t.h"'}, "bench must not include tools"),
    ({"bench/b.cpp": '#include "bench/support/b.h"\n#include "bench/replay/r.h"'}, None),
    ({"tools/stillmap/b.cpp": '#include "bench/replay/r.h"'}, None),
    ({"python/src/b.cpp": '#include "bench/replay/r.h"'}, None),
    ({"examples/e.cpp": '#include "bench/replay/r.h"'}, "must not include bench/replay"),
    ({"examples/e.cpp": '#include "tests/support/s.h"'}, "must not include tests"),
    ({"examples/e.cpp": "#include <hostcuda/hostcuda.h>"}, "must not include hostcuda"),
    # Internal headers.
    ({"vmm/e.cpp": '#include "stillmap/vmm/internal/state.h"\n#include "stillmap/vmm/driver/table.h"'}, None),
    ({"vmm/b.h": '#include "stillmap/vmm/internal/state.h"'}, "an installed header must not include"),
    ({"vmm/b.h": '#include "stillmap/vmm/driver/table.h"'}, "an installed header must not include"),
    ({"vmm/b.h": '#include "stillmap/vmm/base/try.h"'}, None),
    ({"allocators/b.cpp": '#include "stillmap/vmm/internal/state.h"'}, "is internal to vmm"),
    ({"allocators/b.cpp": '#include "stillmap/vmm/base/try.h"'}, None),
    ({"allocators/internal/b.h": '#include "stillmap/vmm/base/try.h"'}, None),
    ({"checkpoint/image/b.cpp": '#include "stillmap/allocators/internal/i.h"'}, "is internal to allocators"),
    ({"checkpoint/suspend/b.cpp": '#include "stillmap/checkpoint/common/internal/c.h"'}, "is internal to checkpoint/common"),
    ({"checkpoint/suspend/internal/b.cpp": '#include "stillmap/checkpoint/common/internal/c.h"'}, "is internal to checkpoint/common"),
    ({"checkpoint/common/b.cpp": '#include "stillmap/checkpoint/common/internal/c.h"'}, None),
    ({"checkpoint/image/b.cpp": '#include "stillmap/checkpoint/base/internal/i.h"'}, "is internal to checkpoint/base"),
    ({"checkpoint/migration/b.cpp": '#include "stillmap/checkpoint/image/internal/i.h"'}, "is internal to checkpoint/image"),
    ({"allocators/torch/b.cpp": '#include "stillmap/allocators/internal/i.h"'}, None),
    ({"allocators/b.cpp": '#include "stillmap/allocators/torch/internal/i.h"'}, "allocators must not include allocators/torch"),
    ({"tests/allocators/b_test.cpp": '#include "stillmap/allocators/internal/i.h"'}, None),
    ({"tools/stillmap/b.cpp": '#include "stillmap/vmm/base/try.h"'}, None),
    ({"examples/b.cpp": '#include "stillmap/vmm/internal/state.h"'}, "is internal to vmm"),
    ({"python/src/b.cpp": '#include "stillmap/vmm/base/try.h"'}, None),
    ({"python/src/b.cpp": '#include "tools/stillmap/t.h"'}, "python must not include tools"),
    ({"tests/vmm/b_test.cpp": '#include "stillmap/vmm/internal/state.h"'}, None),
    # Circles: of two, of three over sources, and across folders. A source with its header is none.
    ({"vmm/a.h": '#include "stillmap/vmm/b.h"', "vmm/b.h": '#include "stillmap/vmm/a.h"'}, "circle of 2"),
    ({"vmm/a.h": "", "vmm/a.cpp": '#include "stillmap/vmm/a.h"'}, None),
    ({"vmm/a.h": "", "vmm/a.cpp": '#include "stillmap/vmm/a.h"\n#include "stillmap/vmm/b.h"', "vmm/b.h": "",
      "vmm/b.cpp": '#include "stillmap/vmm/b.h"\n#include "stillmap/vmm/internal/c.h"', "vmm/internal/c.h": '#include "stillmap/vmm/a.h"'}, "circle of 3"),
    ({"hostcuda/src/a.h": '#include "hostcuda/src/b.h"', "hostcuda/src/b.h": "",
      "hostcuda/src/b.cpp": '#include "hostcuda/src/b.h"\n#include "hostcuda/src/a.h"'}, "circle of 2"),
    ({"tests/support/a.h": '#include "tests/support/b.h"', "tests/support/b.h": "",
      "tests/support/b.cpp": '#include "tests/support/b.h"\n#include "tests/support/a.h"'}, "circle of 2"),
    ({"vmm/a.h": "", "vmm/b.h": '#include "stillmap/vmm/a.h"', "vmm/a_more.cpp":
      '#include "stillmap/vmm/a.h"\n#include "stillmap/vmm/b.h"'}, None),
)


def self_test(root):
    """Plants one violation of each rule in a tree that has none, and uses that are allowed."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        planted = pathlib.Path(folder)

        def write(name, text):
            (planted / name).parent.mkdir(parents=True, exist_ok=True)
            (planted / name).write_text(text + "\n")

        write(MODULES_FILE, (root / MODULES_FILE).read_text())
        for name in PLANTED:
            write(name, "#pragma once")
        for files, expected in CASES:
            for name, text in files.items():
                write(name, text if "twice" in text else "#pragma once\n" + text)
            _, problems = check_tree(planted)
            good = not problems if expected is None else any(expected in p for p in problems)
            if not good:
                wrong += 1
                print("self-test: %s gave %s, not %s" % (files, problems, expected), file=sys.stderr)
            for name in files:
                (planted / name).unlink()
    print("includes: self-test, %d cases, %d wrong" % (len(CASES), wrong))
    return wrong


def main():
    arguments = sys.argv[1:]
    here = pathlib.Path(__file__).resolve().parents[2]
    if "--self-test" in arguments:
        arguments.remove("--self-test")
        if self_test(here):
            return 1
    files, problems = check_tree(pathlib.Path(arguments[0]) if arguments else here)
    for problem in problems:
        print(problem, file=sys.stderr)
    print("includes: %d files, %d problems" % (files, len(problems)))
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
