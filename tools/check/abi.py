#!/usr/bin/env python3
"""Compares the ABI of a built libstillmap_c.so with the description that is stored (docs/c_api.md#abi).

    tools/check/abi.py LIBRARY             any difference is a failure: abidiff says which
    tools/check/abi.py --update LIBRARY    writes the description; a function or a member at the end may be added,
                                           nothing else may change while the library is libstillmap_c.so.0

Needs abidw and abidiff (Debian: abigail-tools), and a library with debug information: CMake's
-DSTILLMAP_C_API_DEBUG_INFO=ON. The description has the exported functions and what they lead to, without paths.
"""
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parents[2]
STORED = HERE / "c_api" / "abi" / "libstillmap_c.so.0.abi"
ABIDW = ["abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed", "--no-parameter-names",
         "--type-id-style", "hash"]
REFERENCES = ("type-id", "naming-typedef-id", "def-of-decl-id")


def described(library):
    """The description of a library, reduced to what its exported functions lead to."""
    made = subprocess.run(ABIDW + [str(library)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if made.returncode or not made.stdout:
        raise SystemExit("abi: abidw failed on %s: %s" % (library, made.stderr))
    corpus = xml.fromstring(made.stdout)
    types, functions = {}, []
    for unit in corpus.iter("abi-instr"):
        for node in unit.iter():
            if "id" in node.attrib and node.tag != "subrange":
                # A declaration only where there is no definition.
                known = types.get(node.attrib["id"])
                if known is None or known.attrib.get("is-declaration-only") == "yes":
                    types[node.attrib["id"]] = node
            elif node.tag == "function-decl" and "elf-symbol-id" in node.attrib:
                functions.append(node)
    if not functions:
        raise SystemExit("abi: %s has no exported function with debug information" % library)
    wanted, waiting = set(), list(functions)
    while waiting:
        for node in waiting.pop().iter():
            for name in REFERENCES:
                target = node.attrib.get(name)
                if target in types and target not in wanted:
                    wanted.add(target)
                    waiting.append(types[target])
    for unit in list(corpus.findall("abi-instr")):
        corpus.remove(unit)
    unit = xml.SubElement(corpus, "abi-instr", {"address-size": "64", "path": "c_api.h", "language": "LANG_C11"})
    order = lambda node: (node.tag, node.attrib.get("name", ""), node.attrib.get("id", ""))
    unit.extend(sorted((types[i] for i in wanted), key=order))
    unit.extend(sorted(functions, key=order))
    xml.indent(corpus)
    return xml.tostring(corpus, encoding="unicode") + "\n"


def compare(stored, library):
    """What differs between a description and a library: '' where nothing does."""
    with tempfile.TemporaryDirectory() as folder:
        now = pathlib.Path(folder) / "now.abi"
        now.write_text(described(library))
        done = subprocess.run(["abidiff", "--harmless", str(stored), str(now)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout or "abidiff ended with %d\n" % done.returncode if done.returncode else ""


def main(arguments):
    update = "--update" in arguments
    arguments = [a for a in arguments if a != "--update"]
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    library = pathlib.Path(arguments[0])
    if update:
        STORED.write_text(described(library))
        print("abi: wrote %s" % STORED.relative_to(HERE))
        return 0
    found = compare(STORED, library)
    if found:
        print(found, end="")
        print("abi: %s is not what %s describes: undo the change, or, if it only adds, record it with --update"
              % (library.name, STORED.relative_to(HERE)), file=sys.stderr)
        return 1
    print("abi: %s is as described" % library.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
