#!/usr/bin/env python3
"""Writes driver_functions.h, the table of all functions of the driver API.

    preload/functions/generate.py [--check] HEADERS...

HEADERS are include folders of CUDA Toolkits, oldest first; give several versions, because a toolkit drops
functions that its driver still exports. With --check nothing is written: the status is 1 if HEADERS declare
a function that is not in the table, or declare it with another ABI.

A row has the exported symbol, the name that cuGetProcAddress knows, the CUDA version that introduced this ABI
(that of its PFN_<function>_v<version> in cudaTypedefs.h), whether it is for a per-thread default stream, whether
it waits while memory is suspended, and its parameters. Of these only what the calling convention distinguishes is
kept: pointers and 64-bit numbers, 32-bit numbers, floating point, and structures of 8 and of 64 bytes that are passed by value.
"""
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE / "driver_functions.h"
HEADERS = ("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
# The settings of the headers that select names: current, every version, per-thread default stream.
MODES = ((), ("__CUDA_API_VERSION_INTERNAL",), ("CUDA_API_PER_THREAD_DEFAULT_STREAM",), ("CUDA_ENABLE_DEPRECATED",))
# Functions without a typedef: the version of the symbol that they are a variant of.
UNTYPED = {"cuGetProcAddress_v2_ptsz": 12000}
# Of cudaProfiler.h, which PyPI has in another package, and without parameters of interest.
PROFILER = {"cuProfilerInitialize": ["word", "word", "number"], "cuProfilerStart": [], "cuProfilerStop": []}
# Calls that neither read nor change device memory, nor queue work: they go on while memory is suspended.
GOES_ON = re.compile(
    r"cu(Init|DriverGetVersion|GetError\w+|GetProcAddress|GetExportTable|Device(CanAccessPeer|ComputeCapability"
    r"|Get(?!GraphMem)\w*|PrimaryCtxGetState|PrimaryCtxRetain|TotalMem)|Ctx(GetCurrent|SetCurrent|PushCurrent|PopCurrent"
    r"|GetDevice|GetFlags|GetId|GetApiVersion|GetLimit|GetCacheConfig|GetStreamPriorityRange)"
    r"|Mem(GetInfo|GetAddressRange|HostGet\w+)|Stream(Query|IsCapturing|Get\w+)"
    r"|Event(Query|ElapsedTime)|ThreadExchangeStreamCaptureMode|Logs\w+|Coredump\w+|Checkpoint\w+)$")

WORD, NUMBER, FLOAT, DOUBLE = "word", "number", "float", "double"
# Structures that are passed by value, and 64-bit or 32-bit types that are no structure of the headers.
BY_VALUE = {"CUmemLocation": "location", "CUipcMemHandle": "bytes_64", "CUipcEventHandle": "bytes_64",
            "CUeglFrame": "bytes_64"}
SIMPLE = {"int": NUMBER, "unsigned int": NUMBER, "unsigned": NUMBER, "short": NUMBER, "unsigned short": NUMBER,
          "unsigned char": NUMBER, "char": NUMBER, "size_t": WORD, "unsigned long long": WORD, "long long": WORD,
          "float": FLOAT, "double": DOUBLE, "cuuint32_t": NUMBER, "cuuint64_t": WORD, "GLuint": NUMBER,
          "GLenum": NUMBER, "VdpVideoSurface": NUMBER, "VdpOutputSurface": NUMBER, "VdpDevice": NUMBER,
          "EGLImageKHR": WORD, "EGLStreamKHR": WORD, "EGLSyncKHR": WORD, "HGPUNV": WORD, "EGLint": NUMBER}
FOREIGN_INCLUDE = r'#\s*include\s*[<"](?:GL/|EGL/|vdpau/|stdlib|stdint|stddef|cuda\w*\.h)[^>"]*[>"]'


def preprocess(folder, header, mode):
    """The text of a header without its foreign includes, after the preprocessor."""
    text = re.sub(FOREIGN_INCLUDE, "", (folder / header).read_text(encoding="utf-8", errors="replace"))
    done = subprocess.run(["cc", "-E", "-P", "-x", "c", "-w", *["-D" + name for name in mode], "-"], input=text,
                          capture_output=True, text=True, check=True)
    return done.stdout


def types_of(text):
    """What each typedef of a header is in the calling convention."""
    known = dict(SIMPLE)
    for name in re.findall(r"typedef\s+enum\s+\w*\s*\{[^}]*\}\s*(\w+)\s*;", text):
        known[name] = NUMBER
    for name in re.findall(r"typedef\s+(?:const\s+)?(?:struct\s+)?\w[\w\s]*\*\s*(\w+)\s*;", text):
        known[name] = WORD
    for name in re.findall(r"typedef\s+\w[\w\s]*\(\s*\w*\s*\*\s*(\w+)\s*\)\s*\(", text):
        known[name] = WORD
    for name, abi in BY_VALUE.items():
        known[name] = known[name + "_v1"] = abi
    aliases = re.findall(r"typedef\s+((?:unsigned\s+)?\w+(?:\s+long)?(?:\s+int)?)\s+(\w+)\s*;", text)
    for _ in range(4):
        for what, name in aliases:
            if name not in known and what in known:
                known[name] = known[what]
    return known


def split_parameters(text):
    parts, depth, one = [], 0, ""
    for character in text:
        depth += character in "(["
        depth -= character in ")]"
        if character == "," and depth == 0:
            parts.append(one)
            one = ""
        else:
            one += character
    return [part.strip() for part in [*parts, one] if part.strip() not in ("", "void")]


def abi_of(parameter, known, where):
    if "*" in parameter or "[" in parameter:
        return WORD
    words = [word for word in parameter.split() if word not in ("const", "enum", "struct")]
    for length in (len(words), len(words) - 1):
        if length > 0 and " ".join(words[:length]) in known:
            return known[" ".join(words[:length])]
    if parameter.startswith("enum ") or words[0].endswith("_enum"):
        return NUMBER
    sys.exit(f"{where}: the ABI of '{parameter}' is not known")


def declared(folders):
    """The parameters of each symbol, and the versions of each function and kind of default stream."""
    symbols, versions = dict(PROFILER), {(name, ""): {4000} for name in PROFILER}
    for folder in folders:
        base = {mode: preprocess(folder, "cuda.h", mode) for mode in MODES}
        known = {}
        for text in base.values():
            known.update(types_of(text))
        for header in HEADERS:
            if not (folder / header).exists():
                continue
            for mode in MODES:
                text = base[mode] if header == "cuda.h" else preprocess(folder, header, mode)
                here = {**known, **types_of(text)}
                for name, parameters in re.findall(r"\bCUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w*)\s*\(([^;]*)\)\s*;", text):
                    where = f"{folder}/{header}: {name}"
                    abi = [abi_of(p, here, where) for p in split_parameters(parameters)]
                    if symbols.setdefault(name, abi) != abi:
                        sys.exit(f"{where}: {abi}, elsewhere {symbols[name]}")
                typedefs = header.replace(".h", "Typedefs.h")
                if not (folder / typedefs).exists():
                    continue
                text = preprocess(folder, typedefs, mode)
                for name, version, suffix in re.findall(r"\*\s*PFN_(cu\w+?)_v(\d{4,5})(_pt[sd][sz])?\s*\)", text):
                    versions.setdefault((name, suffix), set()).add(int(version))
    return symbols, versions


def split(symbol):
    """cuMemcpyHtoD_v2_ptds -> (cuMemcpyHtoD, 2, _ptds)."""
    name, number, suffix = re.fullmatch(r"(cu\w+?)(?:_v(\d))?(_pt[sd][sz])?", symbol).groups()
    return name, int(number or 1), suffix or ""


def introduced(symbols, versions):
    """The version that introduced each symbol: the n-th version of a function is its n-th symbol."""
    families = {}
    for symbol in symbols:
        name, number, suffix = split(symbol)
        families.setdefault((name, suffix), []).append((number, symbol))
    since = {}
    for (name, suffix), family in sorted(families.items()):
        known = sorted(versions.get((name, suffix), ()))
        for position, (number, symbol) in enumerate(sorted(family)):
            if symbol in UNTYPED:
                since[symbol] = UNTYPED[symbol]
            elif len(known) == len(family):
                since[symbol] = known[position]
            else:
                sys.exit(f"the version of {symbol} ({number} of {len(family)}; versions: {known}) is not known: "
                         "add it to UNTYPED")
    return since


def table(symbols, since):
    rows = []
    for symbol in sorted(symbols):
        name, _, suffix = split(symbol)
        parameters = ", ".join(f"{abi} a{n}" for n, abi in enumerate(symbols[symbol]))
        arguments = ", ".join(f"a{n}" for n in range(len(symbols[symbol])))
        waits = "goes_on" if GOES_ON.match(name) else "waits"
        rows.append(f"  X({symbol}, {name}, {since[symbol]}, {'per_thread' if suffix else 'legacy'}, {waits}, "
                    f"({parameters}), ({arguments})) \\")
    rows[-1] = rows[-1].removesuffix(" \\")
    return "\n".join([
        "// All functions of the driver API: X(symbol, name for cuGetProcAddress, CUDA version that introduced the",
        "// ABI, default stream, whether it waits while memory is suspended, parameters, arguments).",
        "// Generated by preload/functions/generate.py from the headers of the CUDA Toolkits 12.0 to 13.5.",
        "#pragma once", "", "// clang-format off", "#define STILLMAP_DRIVER_FUNCTIONS(X) \\", *rows,
        "// clang-format on", ""])


def main(arguments):
    check = arguments[0] == "--check"
    folders = [pathlib.Path(folder) for folder in (arguments[1:] if check else arguments)]
    symbols, versions = declared(folders)
    if check:
        text = TABLE.read_text(encoding="utf-8")
        wrong = []
        for symbol, abi in sorted(symbols.items()):
            parameters = ", ".join(f"{kind} a{n}" for n, kind in enumerate(abi))
            if not re.search(rf"X\({symbol}, .*\({re.escape(parameters)}\), \(", text):
                wrong.append(symbol)
        if wrong:
            sys.exit("missing in driver_functions.h, or other parameters: " + " ".join(wrong))
        print(f"driver_functions.h: {len(symbols)} functions are as the headers declare them")
        return
    TABLE.write_text(table(symbols, introduced(symbols, versions)), encoding="utf-8")
    print(f"{len(symbols)} functions")


if __name__ == "__main__":
    # Without headers, or with an option that is none, the table would become empty.
    if len(sys.argv) < 2 or any(a.startswith("-") and a != "--check" for a in sys.argv[1:]):
        sys.exit(__doc__)
    main(sys.argv[1:])
