#!/usr/bin/env python3
"""Checks that the classes of the allocator's engine stay small, each in its own file.

    tools/check/classes.py [--self-test] [ROOT]

  one source   functions of a class are defined in its header or in the source of the same name
  small        a class has at most 40 member functions, overloads counted
  no data      a class that owns a lock has no public data but constants
  numbers      a source has no number above 2 but those of a machine word: what is decided by a number is in
               policy.h, the sizes of tables are constants in headers

Reads what universal-ctags says of the files.
"""
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDERS = ("allocators/engine",)
MOST_FUNCTIONS = 40
WORD = {"8", "32", "63", "64"}
LITERAL = re.compile(r"(?<![\w.'])(\d[\d']*(?:\.\d*)?)(?![\w.'])")
CTAGS = ["ctags", "--languages=C++", "--kinds-C++=+p-d", "--fields=+aksSnt", "--output-format=json", "-o", "-"]


def tags_of(root, files):
    lines = subprocess.run(CTAGS + files, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    for tag in map(json.loads, lines):
        scope = tag.get("scope", "")
        tag["full"] = "%s::%s" % (scope, tag["name"]) if scope else tag["name"]
        yield tag


def code_of(text):
    """Without comments and strings."""
    return re.sub(r'//[^\n]*|"(?:\\.|[^"\\\n])*"', "", text)


def problems_of_classes(tags):
    declared, functions, locked = {}, collections.Counter(), set()
    tags = list(tags)
    for tag in tags:
        header = tag["path"].endswith(".h")
        if tag["kind"] in ("class", "struct") and header:
            declared[tag["full"]] = tag["path"], tag["kind"]
        if tag["kind"] in ("prototype", "function") and header:
            functions[tag.get("scope")] += 1
        if tag["kind"] == "member" and re.search(r"\b(?:mutex|arena_lock)\b", tag.get("typeref", "")):
            locked.add(tag["scope"])
    for name, (path, _) in sorted(declared.items()):
        if functions[name] > MOST_FUNCTIONS:
            yield "%s: %s has %d member functions, more than %d" % (path, name, functions[name], MOST_FUNCTIONS)
    for tag in tags:
        path, kind = declared.get(tag.get("scope"), (None, None))
        if path is None:
            continue
        own = path[:-len("h")] + "cpp"
        if tag["kind"] == "function" and tag["path"] not in (path, own):
            yield "%s:%d: %s is defined here, not in %s" % (tag["path"], tag["line"], tag["full"], own)
        public = tag["kind"] == "member" and kind == "class" and tag.get("access") == "public"
        if public and tag["scope"] in locked and not re.search(r"\bconst\b", tag.get("typeref", "")):
            yield "%s:%d: %s is public, in a class that owns a lock" % (tag["path"], tag["line"], tag["full"])


def problems_of_numbers(path, text):
    for number, line in enumerate(code_of(text).split("\n"), 1):
        for literal in LITERAL.findall(line):
            if literal not in WORD and float(literal.replace("'", "")) > 2 and "constexpr" not in line:
                yield "%s:%d: the number %s: name it in policy.h, or as a constant of a table" % (path, number, literal)


def check(root):
    files = sorted(str(p.relative_to(root)) for top in FOLDERS for p in (root / top).rglob("*") if p.suffix in (".h", ".cpp"))
    problems = list(problems_of_classes(tags_of(root, files)))
    for path in files:
        if path.endswith(".cpp"):
            problems += problems_of_numbers(path, (root / path).read_text())
    return files, problems


FILES_OF_TEST = {
    "a.h": "namespace n {\nclass a {\n public:\n  void f();\n  void g() {}\n  const int id = 1;\n\n private:\n  mutex m_;\n};\n}",
    "a.cpp": "namespace n {\nvoid a::f() { work(64); }  // 3 times\n}",
}
CASES = (
    ({}, None),
    ({"b.cpp": "namespace n {\nvoid a::f() {}\n}"}, "is defined here, not in"),
    ({"a.h": FILES_OF_TEST["a.h"].replace("  void f();", "  void f();\n  int seen = 0;")}, "is public"),
    ({"a.h": FILES_OF_TEST["a.h"].replace("  mutex m_;", "  int seen_;").replace("  void f();", "  void f();\n  int seen = 0;")}, None),
    ({"a.h": FILES_OF_TEST["a.h"].replace("  void f();", "  void f();\n" + "".join("  int f%d();\n" % i for i in range(39)))}, "more than 40"),
    ({"a.h": FILES_OF_TEST["a.h"].replace("  void f();", "  void f();\n" + "".join("  int f%d();\n" % i for i in range(38)))}, None),
    ({"a.cpp": "namespace n {\nvoid a::f() { if (work() > 256) return; }\n}"}, "the number 256"),
    ({"a.cpp": "namespace n {\nvoid a::f() { work(0.25 * 4.5); }\n}"}, "the number 4.5"),
)


def self_test():
    wrong = 0
    for changed, expected in CASES:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / FOLDERS[0]).mkdir(parents=True)
            for name, text in {**FILES_OF_TEST, **changed}.items():
                (root / FOLDERS[0] / name).write_text(text)
            _, problems = check(root)
        if (len(problems) != 1 or expected not in problems[0]) if expected else problems:
            wrong += 1
            print("self-test: %s gave %s, not %s" % (sorted(changed), problems, expected), file=sys.stderr)
    print("classes: self-test, %d cases, %d wrong" % (len(CASES), wrong))
    return wrong


def main(arguments):
    if "--self-test" in arguments:
        arguments.remove("--self-test")
        if self_test():
            return 1
    files, problems = check(pathlib.Path(arguments[0]).resolve() if arguments else pathlib.Path(__file__).resolve().parents[2])
    for problem in problems:
        print(problem, file=sys.stderr)
    print("classes: %d files, %d problems" % (len(files), len(problems)))
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
