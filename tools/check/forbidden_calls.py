#!/usr/bin/env python3
"""Finds calls that a library which is loaded into other people's processes must not make, nor a setuid command.

Usage: forbidden_calls.py [--self-test] [ROOT]
"""

import pathlib
import re
import sys

LIBRARIES = ("vmm", "allocators", "checkpoint", "c_api", "preload", "bench/replay")

# Pattern, what to do instead, and the files that may.
RULES = (
    (r"(?<!secure_)\bgetenv\s*\(", "use secure_getenv: a setuid program must not obey its caller", ()),
    (r"\bstd::j?thread(?:\s+\w+)?\s*[({](?!\s*[)}])|\bstd::async\s*\(|\bpthread_create\s*\(",
     "use start_thread (vmm/base/start_thread.h): the thread blocks signals, and reports an error",
     ("vmm/base/start_thread.h",)),
    (r"\bsystem_clock\b|\bCLOCK_REALTIME\b|\bstd::time\s*\(|\bgettimeofday\s*\(",
     "use steady_clock: the wall clock jumps. Only times that people read are of the wall clock",
     ("allocators/admission/quota_ledger.cpp", "allocators/internal/history_ring.cpp", "checkpoint/control/audit.cpp",
      "checkpoint/control/audit.h", "checkpoint/image/writer.cpp", "checkpoint/snapshot/save_set.cpp")),
    (r"\bstd::(?:terminate|abort|exit|quick_exit)\s*\(|\b_exit\s*\(|(?<![\w>])::abort\s*\(",
     "return an error: the process is not the library's to end", ()),
    (r"\bsetlocale\s*\(|\blocale::global\s*\(", "the locale is the program's", ()),
    (r"\bsigaction\s*\(|\bstd::signal\s*\(|::signal\s*\(", "signal handlers are the program's", ()),
    (r"\bsetenv\s*\(|\bputenv\s*\(|\bchdir\s*\(|\bumask\s*\(",
     "the environment, the current directory and the file mode mask are the program's", ()),
)


# The command's process is its own, but it may be installed setuid, too.
COMMAND = "tools/stillmap"
RULES_OF_COMMAND = RULES[:1]


def problems_of(path, text):
    rules = RULES_OF_COMMAND if path.startswith(COMMAND) else RULES
    for number, line in enumerate(text.split("\n"), 1):
        code = line.split("//")[0]
        for pattern, instead, allowed in rules:
            if path not in allowed and re.search(pattern, code):
                yield "%s:%d: %s" % (path, number, instead)


def check(root):
    files = sorted(p for top in LIBRARIES + (COMMAND,) for s in ("*.h", "*.cpp") for p in (root / top).rglob(s))
    found = [p for f in files for p in problems_of(str(f.relative_to(root)), f.read_text())]
    return len(files), found


CASES = (
    ('const char *p = getenv("A");', True), ('const char *p = ::secure_getenv("A");', False),
    ("std::jthread t([&] {});", True), ("std::thread{f}.detach();", True), ("std::jthread thread_;", False),
    ("auto t = start_thread<std::thread>(f);", False), ("std::vector<std::thread> all;", False),
    ("std::thread t;", False), ("const auto now = std::chrono::system_clock::now();", True),
    ("const auto now = std::chrono::steady_clock::now();", False), ("// never std::exit(1)", False),
    ("std::exit(1);", True), ("session_.abort(e);", False), ("session::abort(const error &e) {", False),
    ("::abort();", True), ("result<kind> client::abort() const {", False), ("std::terminate();", True), ("std::set_terminate(f);", False),
    ("::sigaction(SIGXFSZ, &a, nullptr);", True), ('std::setlocale(LC_ALL, "C");', True), ("umask(0);", True),
)


def self_test():
    wrong = [code for code, bad in CASES if bool(list(problems_of("vmm/a.cpp", code))) != bad]
    for code in wrong:
        print("self-test: judged wrongly: " + code, file=sys.stderr)
    print("forbidden_calls: self-test, %d cases, %d wrong" % (len(CASES), len(wrong)))
    return wrong


def main():
    arguments = sys.argv[1:]
    if "--self-test" in arguments:
        arguments.remove("--self-test")
        if self_test():
            return 1
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parents[2]
    count, found = check(root)
    for problem in found:
        print("forbidden_calls: " + problem, file=sys.stderr)
    print("forbidden_calls: %d files, %d problems" % (count, len(found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
