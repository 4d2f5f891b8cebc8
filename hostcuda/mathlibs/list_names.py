#!/usr/bin/env python3
"""Writes src/*_names.h: the functions of the math libraries that a program imports, and that no source
here defines.

    list_names.py SHARED_LIBRARY...      add what these import, as in .../site-packages/torch/lib/*.so
    list_names.py --strings LIBRARY...   and the names in their data, as of functions looked up by dlsym
    list_names.py                        only leave out what a source defines by now

Names that are listed already stay, so the lists serve all versions of the programs they were made of.
"""

import pathlib
import re
import subprocess
import sys

SOURCES = pathlib.Path(__file__).resolve().parent / "src"

# Library -> how its functions begin, and what those do that have no source: only the first kind can be
# left out of a program that reads no result of a kernel.
LIBRARIES = {
    "cublas": ("cublas(?!Lt)", "SUCCEEDS"),
    "cublasLt": ("cublasLt", "SUCCEEDS"),
    "cudnn": ("cudnn", "SUCCEEDS"),
    "cufft": ("cufft", "SUCCEEDS"),
    "cufile": ("cuFile", "REFUSES"),
    "cupti": ("cupti", "REFUSES"),
    "curand": ("curand", "REFUSES"),
    "cusolver": ("cusolver", "REFUSES"),
    "cusparse": ("cusparse(?!Lt)", "REFUSES"),
    "cusparseLt": ("cusparseLt", "REFUSES"),
    "nccl": ("nccl", "SUCCEEDS"),
    "nvshmem": ("nvshmem", "REFUSES"),
}
HEAD = "// Written by list_names.py. clang-format off\n#pragma once\n"


def imports(path):
    out = subprocess.run(["nm", "-D", "--undefined-only", path], check=True, capture_output=True,
                         text=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines() if line.strip()}


def strings(path):
    names = "|".join(begin for begin, _ in LIBRARIES.values())
    found = re.findall(rb"(?<=\0)(?:%b)[A-Z]\w+(?=\0)" % names.encode(), pathlib.Path(path).read_bytes())
    return {name.decode() for name in found}


def defined(text):
    """The functions of a source. DESCRIPTOR(X) defines two."""
    names = set(re.findall(r"^STAND_IN [^;{]*?\b(\w+)\(", text, re.M))
    names |= set(re.findall(r"^(?:STAND_IN_\w+|CONVOLUTION_WORKSPACE)\((\w+)\)", text, re.M))
    for name in re.findall(r"^DESCRIPTOR\((\w+)\)", text, re.M):
        names |= {"cudnnCreate" + name, "cudnnDestroy" + name}
    return names


def main():
    wanted = set()
    paths = [argument for argument in sys.argv[1:] if argument != "--strings"]
    for path in paths:
        wanted |= imports(path) | (strings(path) if "--strings" in sys.argv else set())
    for library, (pattern, what) in LIBRARIES.items():
        header = SOURCES / (library + "_names.h")
        known = set(re.findall(r"\((\w+)\)", header.read_text())) if header.exists() else set()
        names = known | {name for name in wanted if re.match(pattern, name)}
        names -= defined((SOURCES / (library + ".cpp")).read_text())
        header.write_text(HEAD + "".join("STAND_IN_%s(%s)\n" % (what, name)
                                         for name in sorted(names)))


if __name__ == "__main__":
    main()
