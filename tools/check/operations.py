#!/usr/bin/env python3
"""Checks that errors of the libraries name the public function that was called (docs/errors.md).

    tools/check/operations.py [--self-test] [ROOT]

  opened   a public function of an installed header whose body makes an error opens a scope: an operation_scope,
           or with_host_memory() with a name
  true     a public function opens a scope of its own name, or of its class's; another function, of the name of a
           public one, of a public class, or of a function of Python's ("stillmap.torch.pool")
  one way  no constant holds the name of an operation, and no parameter hands it down

Reads what universal-ctags says of the files.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parents[2]
MODULES = HERE / "tools" / "build" / "modules.bzl"
CTAGS = ["ctags", "--languages=C++", "--kinds-C++=fpcs", "--fields=+aeksSnt", "--output-format=json", "-o", "-"]
INTERNAL = re.compile(r"/(?:internal|engine|admission|driver)/")
MAKES = re.compile(r"\b(?:make_error|make_system_error|file_error|system_error_at|host_out_of_memory|with_host_memory)\(")
OPENS = re.compile(r'\boperation_scope \w+\(\s*|\bwith_host_memory\(\s*(?="|name_of\()|\benter\(impl_\.get\(\),\s*')
NAMED = re.compile(r'(?:%s)"([^"]*)"' % OPENS.pattern)
HANDED = re.compile(r"const char \*\s*(?:const )?(?:op|operation|\w+_op)\b(?! = \"\";)")
ENTERED = re.compile(r"\boperation_scope \w+\(operation\)|\b(?:with_host_memory|enter|create|destroy)\(operation,")
FAILS = re.compile(r"\b(?:status|result)\b")
# Where the name comes from: the scope itself, and what the library is entered with.
SOURCES_OF_NAMES = ("vmm/base/operation", "vmm/base/host_memory.h", "vmm/base/error.h", "c_api/c_api.h")


def tags_of(root, files):
    lines = subprocess.run(CTAGS + files, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    for tag in map(json.loads, lines):
        scope = tag.get("scope", "")
        tag["full"] = "%s::%s" % (scope, tag["name"]) if scope else tag["name"]
        yield tag


def problems_of(root, files):
    tags = list(tags_of(root, files))
    installed = [t for t in tags if t["path"].endswith(".h") and not INTERNAL.search(t["path"])]
    # By their last two names: that is how an error has them.
    names = {"::".join(t["full"].split("::")[-2:]) for t in installed} | {t["name"] for t in installed}
    public = {t["full"] for t in installed if t["kind"] == "prototype" and t.get("access", "public") == "public"
              and FAILS.search(t.get("typeref", ""))}
    functions = {}
    for tag in tags:
        if tag["kind"] == "function" and "end" in tag and "__anon" not in tag["name"]:
            functions.setdefault(tag["path"], []).append(tag)
    for path in files:
        lines = (root / path).read_text().split("\n")
        entered = set()
        for tag in functions.get(path, []):
            body = "\n".join(lines[tag["line"] - 1:tag["end"]])
            if ENTERED.search(body):
                entered.update(range(tag["line"], tag["end"] + 1))
            is_public = tag["full"] in public
            if is_public and path.endswith(".cpp") and MAKES.search(body) and not OPENS.search(body):
                yield "%s:%d: %s makes an error and opens no scope" % (path, tag["line"], tag["full"])
            for name in NAMED.findall(body):
                tail = [part.lstrip("~") for part in name.split("::")][-2:]
                if is_public and tail[-1] not in tag["full"].split("::"):
                    yield "%s:%d: %s calls itself %s" % (path, tag["line"], tag["full"], name)
                elif "." not in name and "::".join(tail) not in names and tail[-1] not in names:
                    yield "%s:%d: %s is no public function" % (path, tag["line"], name)
        if not path.startswith(SOURCES_OF_NAMES):
            for number, line in enumerate(lines, 1):
                if HANDED.search(line.split("//")[0]) and number not in entered:
                    yield "%s:%d: hands the name of an operation down: errors take it from the scope" % (path, number)


def modules():
    text = MODULES.read_text()
    return re.findall(r'^    "([\w/]+)":', text[text.index("STILLMAP_MODULES"):text.index("STILLMAP_TOOL_MODULES = ")], re.M)


def check(root, folders):
    files = sorted({str(p.relative_to(root)) for top in {f.split("/")[0] for f in folders} for p in (root / top).rglob("*")
                    if p.suffix in (".h", ".cpp")})
    return files, list(problems_of(root, files))


HEADER = "namespace n {\nclass a {\n public:\n  status f();\n\n private:\n  status g();\n};\nstatus h();\n}"
SOURCE = 'namespace n {\nstatus a::f() {\n  const operation_scope scope("a::f");\n  return make_error(1, "no");\n}\n}'
CASES = (
    ({}, None),
    ({"m/a.cpp": SOURCE.replace('  const operation_scope scope("a::f");\n', "")}, "opens no scope"),
    ({"m/a.cpp": SOURCE.replace("a::f()", "a::g()")}, None),
    ({"m/a.cpp": SOURCE.replace("a::f()", "a::g()").replace('"a::f"', '"n::no"')}, "is no public function"),
    ({"m/a.cpp": SOURCE.replace("a::f()", "a::g()").replace('  const operation_scope scope("a::f");\n', "")}, None),
    ({"m/a.cpp": SOURCE.replace('"a::f"', '"a::g"')}, "calls itself a::g"),
    ({"m/a.cpp": SOURCE.replace('"a::f"', '"n::a"')}, None),
    ({"m/b.cpp": 'namespace n {\nstatus h() {\n  return with_host_memory(\n      "n::k", [] {});\n}\n}'}, "calls itself n::k"),
    ({"m/b.cpp": "namespace n {\nstatus h() {\n  return with_host_memory([] {});\n}\n}"}, "opens no scope"),
    ({"m/b.cpp": 'namespace n {\nstatus a::g(const char *op) {\n  return {};\n}\n}'}, "hands the name"),
    ({"m/b.cpp": "namespace n {\nstatus a::g(const char *operation) {\n  const operation_scope scope(operation);\n}\n}"}, None),
    ({"m/b.cpp": 'namespace n {\nconstexpr const char *send_op = "send";\n}'}, "hands the name"),
)


def self_test():
    wrong = 0
    for changed, expected in CASES:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "m").mkdir()
            for name, text in {"m/a.h": HEADER, "m/a.cpp": SOURCE, **changed}.items():
                (root / name).write_text(text)
            _, problems = check(root, ["m"])
        if (len(problems) != 1 or expected not in problems[0]) if expected else problems:
            wrong += 1
            print("self-test: %s gave %s, not %s" % (changed, problems, expected), file=sys.stderr)
    print("operations: self-test, %d cases, %d wrong" % (len(CASES), wrong))
    return wrong


def main(arguments):
    if "--self-test" in arguments:
        arguments.remove("--self-test")
        if self_test():
            return 1
    files, problems = check(pathlib.Path(arguments[0]).resolve() if arguments else HERE, modules())
    for problem in problems:
        print(problem, file=sys.stderr)
    print("operations: %d files, %d problems" % (len(files), len(problems)))
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
