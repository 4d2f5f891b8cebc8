"""Third-party code, in one list for WORKSPACE and MODULE.bazel alike.

Each entry is a pinned archive. Where STILLMAP_SYSTEM_PACKAGES=1 (tools/bazel sets it with Debian's Bazel)
the same repository is made of the files that the distribution's package installed instead, so that
nothing is downloaded (OpenSSL is always the system's). Both shapes are read by the same BUILD file in third_party/.
"""

def _shared_library(name):
    # By its name for linking, which has no version: each distribution has another one.
    return ["%s/lib%s.so" % (folder, name) for folder in [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ]]

def _run_time_library(name):
    return ["%s/lib%s" % (folder, name) for folder in [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/lib/x86_64-linux-gnu",
        "/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ]]

_DEPENDENCIES = {
    "googletest": struct(
        url = "https://github.com/google/googletest/archive/refs/tags/release-1.12.1.tar.gz",
        sha256 = "81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2",
        strip_prefix = "googletest-release-1.12.1",
        package = "googletest",
        system = {"googletest": ["/usr/src/googletest/googletest"]},
    ),
    "google_benchmark": struct(
        url = "https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz",
        sha256 = "6430e4092653380d9dc4ccb45a1e2dc9259d581f4866dc0759713126056bc1d7",
        strip_prefix = "benchmark-1.7.1",
        package = "libbenchmark-dev",
        system = {
            "include/benchmark": ["/usr/include/benchmark"],
            "lib/libbenchmark.so": _shared_library("benchmark"),
        },
    ),
    "tl_expected": struct(
        url = "https://github.com/TartanLlama/expected/archive/refs/tags/v1.1.0.tar.gz",
        sha256 = "1db357f46dd2b24447156aaf970c4c40a793ef12a8a9c2ad9e096d9801368df6",
        strip_prefix = "expected-1.1.0",
        package = "libexpected-dev",
        system = {"include/tl": ["/usr/include/tl"]},
    ),
    "fmt": struct(
        url = "https://github.com/fmtlib/fmt/archive/refs/tags/9.1.0.tar.gz",
        sha256 = "5dea48d1fcddc3ec571ce2058e13910a0d4a6bab4cc09a809d8b1dd1c88ae6f2",
        strip_prefix = "fmt-9.1.0",
        package = "libfmt-dev",
        system = {
            "include/fmt": ["/usr/include/fmt"],
            "lib/libfmt.so": _shared_library("fmt"),
        },
    ),
    "xxhash": struct(
        url = "https://github.com/Cyan4973/xxHash/archive/refs/tags/v0.8.1.tar.gz",
        sha256 = "3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c",
        strip_prefix = "xxHash-0.8.1",
        package = "libxxhash-dev",
        system = {
            "xxhash.h": ["/usr/include/xxhash.h"],
            "xxh_x86dispatch.h": ["/usr/include/xxh_x86dispatch.h"],
            "libxxhash.so": _shared_library("xxhash"),
        },
    ),
    "zstd": struct(
        url = "https://github.com/facebook/zstd/archive/refs/tags/v1.5.4.tar.gz",
        sha256 = "35ad983197f8f8eb0c963877bf8be50490a0b3df54b4edeb8399ba8a8b2f60a4",
        strip_prefix = "zstd-1.5.4",
        package = "libzstd-dev",
        system = {
            "lib/zstd.h": ["/usr/include/zstd.h"],
            "lib/zstd_errors.h": ["/usr/include/zstd_errors.h"],
            "lib/libzstd.so": _shared_library("zstd"),
        },
    ),
    "lz4": struct(
        url = "https://github.com/lz4/lz4/archive/refs/tags/v1.9.4.tar.gz",
        sha256 = "0b0e3aa07c8c063ddf40b082bdf7e37a1562bda40a0ff5272957f3e987e0e54b",
        strip_prefix = "lz4-1.9.4",
        package = "liblz4-dev",
        system = {
            "lib/lz4.h": ["/usr/include/lz4.h"],
            "lib/liblz4.so": _shared_library("lz4"),
        },
    ),
    "flatbuffers": struct(
        url = "https://github.com/google/flatbuffers/archive/refs/tags/v2.0.8.tar.gz",
        sha256 = "f97965a727d26386afaefff950badef2db3ab6af9afe23ed6d94bfb65f95f37e",
        strip_prefix = "flatbuffers-2.0.8",
        package = "libflatbuffers-dev flatbuffers-compiler",
        system = {
            "include/flatbuffers": ["/usr/include/flatbuffers"],
            "bin/flatc": ["/usr/bin/flatc"],
        },
    ),
    "liburing": struct(
        url = "https://github.com/axboe/liburing/archive/refs/tags/liburing-2.3.tar.gz",
        sha256 = "60b367dbdc6f2b0418a6e0cd203ee0049d9d629a36706fcf91dfb9428bae23c8",
        strip_prefix = "liburing-liburing-2.3",
        package = "liburing-dev",
        system = {
            "include/liburing.h": ["/usr/include/liburing.h"],
            "include/liburing": ["/usr/include/liburing"],
            "lib/liburing.so": _shared_library("uring"),
        },
    ),
    # Always the system's, as the terminals that it knows are.
    "ncursesw": struct(
        url = "",
        package = "libncurses-dev",
        system = {
            "include/curses.h": ["/usr/include/curses.h", "/usr/include/ncursesw/curses.h"],
            "include/ncurses_dll.h": ["/usr/include/ncurses_dll.h", "/usr/include/ncursesw/ncurses_dll.h"],
            "include/unctrl.h": ["/usr/include/unctrl.h", "/usr/include/ncursesw/unctrl.h"],
            # Not the name for linking, which is a script.
            "lib/libncursesw.so.6": _run_time_library("ncursesw.so.6"),
            "lib/libtinfo.so.6": _run_time_library("tinfo.so.6"),
        },
    ),
    # Always the system's, as the TLS that it is linked to.
    "microhttpd": struct(
        url = "",
        package = "libmicrohttpd-dev",
        system = {
            "include/microhttpd.h": ["/usr/include/microhttpd.h"],
            "lib/libmicrohttpd.so": _shared_library("microhttpd"),
        },
    ),
    # Always the system's: cryptography is what a distribution keeps patched, and its build is no
    # Bazel's business.
    "openssl": struct(
        url = "",
        package = "libssl-dev",
        system = {
            "include/openssl": ["/usr/include/openssl"],
            "include/configuration/openssl": [
                "/usr/include/x86_64-linux-gnu/openssl",
                "/usr/include/aarch64-linux-gnu/openssl",
                "/usr/include/openssl",
            ],
            "lib/libcrypto.so": _shared_library("crypto"),
            "lib/libssl.so": _shared_library("ssl"),
        },
    ),
}

def _dependency_impl(ctx):
    entry = _DEPENDENCIES[ctx.attr.entry]
    if not entry.url or ctx.os.environ.get("STILLMAP_SYSTEM_PACKAGES", "") == "1":
        for inside, candidates in entry.system.items():
            found = [path for path in candidates if ctx.path(path).exists]
            if not found:
                fail("%s is missing: apt-get install %s (./test and ./run do it for you)" %
                     (candidates[0], entry.package))
            ctx.symlink(found[0], inside)
    else:
        ctx.download_and_extract(
            url = entry.url,
            sha256 = entry.sha256,
            stripPrefix = entry.strip_prefix,
        )

        # The archive may bring BUILD files of its own, for rules that we do not use.
        for name in ["BUILD.bazel", "WORKSPACE", "WORKSPACE.bazel", "MODULE.bazel", "src/BUILD.bazel"]:
            ctx.delete(name)
        for part in ["googletest", "googlemock"]:
            ctx.delete(part + "/BUILD.bazel")
    ctx.symlink(ctx.attr.build_file, "BUILD")

_dependency = repository_rule(
    implementation = _dependency_impl,
    attrs = {
        "entry": attr.string(mandatory = True),
        "build_file": attr.label(mandatory = True, allow_single_file = True),
    },
    environ = ["STILLMAP_SYSTEM_PACKAGES"],
    doc = "One entry of the list above, downloaded or from the system.",
)

_CUDA_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "headers",
    hdrs = glob(["include/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

_CUDA_RUNTIME_BUILD = """
cc_library(
    name = "runtime{major}_headers",
    hdrs = glob(["runtime{major}/*.h"]),
    includes = ["runtime{major}"],
    visibility = ["//visibility:public"],
)
"""

# <cuda_runtime_api.h> with what it includes, and the <cuda.h> of the same version.
_CUDA_RUNTIME_HEADERS = [
    "builtin_types.h",
    "cuda.h",
    "cuda_device_runtime_api.h",
    "cuda_runtime_api.h",
    "device_types.h",
    "driver_types.h",
    "surface_types.h",
    "texture_types.h",
    "vector_types.h",
]

def _link_runtime_headers(ctx, candidates):
    # hostcuda's runtime is built once for each major version that has headers here.
    majors = {}
    for candidate in candidates:
        if not all([candidate.get_child(name).exists for name in _CUDA_RUNTIME_HEADERS]):
            continue
        text = ctx.read(candidate.get_child("cuda_runtime_api.h"))
        major = int(text.split("#define CUDART_VERSION")[1].strip().split("\n")[0]) // 1000
        if major not in [12, 13] or major in majors:
            continue
        for name in _CUDA_RUNTIME_HEADERS:
            ctx.symlink(candidate.get_child(name), "runtime%d/%s" % (major, name))
        majors[major] = True
    ctx.file("have.bzl", "CUDA_RUNTIME_MAJORS = %s\n" % sorted(majors.keys()))
    return "".join([_CUDA_RUNTIME_BUILD.format(major = major) for major in sorted(majors.keys())])

def _cuda_headers_impl(ctx):
    # <cuda.h> is all that Stillmap needs of the toolkit, so only it is taken; hostcuda's runtime
    # takes the headers of the runtime too.
    root = ctx.path(ctx.attr.workspace_file).dirname
    candidates = []
    explicit = ctx.os.environ.get("STILLMAP_CUDA_INCLUDE", "")
    if explicit and explicit != "pypi":
        candidates = [ctx.path(explicit)]
    else:
        if not explicit:
            home = ctx.os.environ.get("CUDA_HOME", "")
            if home:
                candidates.append(ctx.path(home + "/include"))
            candidates.append(ctx.path("/usr/local/cuda/include"))
            candidates.append(ctx.path("/usr/include"))
        candidates.append(root.get_child(".cache").get_child("cuda").get_child("include"))
    for candidate in candidates:
        if candidate.get_child("cuda.h").exists:
            for name in ["cuda.h", "cudaTypedefs.h"]:
                if candidate.get_child(name).exists:
                    ctx.symlink(candidate.get_child(name), "include/" + name)
            others = [
                ctx.path(ctx.os.environ.get(name))
                for name in ["STILLMAP_CUDA12_INCLUDE", "STILLMAP_CUDA13_INCLUDE"]
                if ctx.os.environ.get(name, "")
            ]
            ctx.file("BUILD", _CUDA_BUILD + _link_runtime_headers(ctx, [candidate] + others))
            return
    fail("No CUDA headers (looked for cuda.h in %s). " % ", ".join([str(c) for c in candidates]) +
         "Install the CUDA Toolkit and set CUDA_HOME, or run ./test or ./run once: they fetch the " +
         "headers from PyPI.")

_cuda_headers = repository_rule(
    implementation = _cuda_headers_impl,
    attrs = {"workspace_file": attr.label(mandatory = True, allow_single_file = True)},
    environ = ["CUDA_HOME", "STILLMAP_CUDA_INCLUDE", "STILLMAP_CUDA12_INCLUDE", "STILLMAP_CUDA13_INCLUDE"],
    configure = True,
    local = True,
    doc = "cuda.h from the toolkit, or from where tools/setup.sh put the one from PyPI.",
)

_MPI_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "mpi",
    srcs = glob(["lib/*"]),
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _mpi_impl(ctx):
    # Open MPI as distributions install it. Without it what needs it has no targets.
    triplets = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
    roots = ["/usr/lib/%s/openmpi" % t for t in triplets] + ["/usr/lib64/openmpi", "/usr/lib/openmpi"]
    found = [r for r in roots if ctx.path(r + "/include/mpi.h").exists and ctx.path(r + "/lib/libmpi.so").exists]
    if found:
        ctx.symlink(found[0] + "/include", "include")
        ctx.symlink(found[0] + "/lib/libmpi.so", "lib/libmpi.so")
    ctx.file("BUILD", _MPI_BUILD if found else "")
    ctx.file("have.bzl", "HAVE_MPI = %s\n" % bool(found))

_mpi = repository_rule(
    implementation = _mpi_impl,
    configure = True,
    local = True,
    doc = "The system's Open MPI (on Debian: libopenmpi-dev), or nothing.",
)

_UCX_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "ucx",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _ucx_impl(ctx):
    # UCX's headers, as distributions install them: the library is loaded at run time. Without them what needs it has no
    # targets.
    there = ctx.path("/usr/include/ucp/api/ucp.h").exists
    if there:
        for name in ["ucp", "ucs"]:
            ctx.symlink("/usr/include/" + name, "include/" + name)
    ctx.file("BUILD", _UCX_BUILD if there else "")
    ctx.file("have.bzl", "HAVE_UCX = %s\n" % there)

_ucx = repository_rule(
    implementation = _ucx_impl,
    configure = True,
    local = True,
    doc = "The headers of the system's UCX (on Debian: libucx-dev), or nothing.",
)

_CCCL_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "headers",
    hdrs = glob(["cccl/cuda/**", "cccl/cub/**", "cccl/nv/**", "cccl/thrust/**", "toolkit/*.h", "toolkit/*.hpp", "toolkit/crt/*"]),
    includes = ["cccl", "toolkit"],
    visibility = ["//visibility:public"],
)
"""

def _cccl_impl(ctx):
    # CCCL, and the headers of the CUDA runtime that it includes: of the toolkit, or from PyPI, where
    # tools/setup.sh has put them. Without it what is written for CCCL is checked by no test.
    cache = ctx.path(ctx.attr.workspace_file).dirname.get_child(".cache")
    explicit = ctx.os.environ.get("STILLMAP_CUDA_INCLUDE", "")
    roots = []
    if explicit and explicit != "pypi":
        roots = [ctx.path(explicit)]
    elif not explicit:
        roots = [ctx.path(home + "/include") for home in [ctx.os.environ.get("CUDA_HOME", "")] if home]
        roots.append(ctx.path("/usr/local/cuda/include"))
    roots.append(cache.get_child("cuda").get_child("include"))
    folders = []
    if ctx.os.environ.get("STILLMAP_CCCL_INCLUDE", ""):
        folders = [ctx.path(ctx.os.environ["STILLMAP_CCCL_INCLUDE"])]
    else:
        for root in roots:
            folders += [root.get_child("cccl"), root]
        folders.append(cache.get_child("cccl"))
    toolkits = [r for r in roots if r.get_child("cuda_runtime_api.h").exists]
    found = [f for f in folders if f.get_child("cuda").get_child("memory_resource").exists]
    have = bool(toolkits and found)
    if have:
        for name in ["cuda", "cub", "nv", "thrust"]:
            ctx.symlink(found[0].get_child(name), "cccl/" + name)
        ctx.symlink(toolkits[0], "toolkit")
    ctx.file("BUILD", _CCCL_BUILD if have else "")
    ctx.file("have.bzl", "HAVE_CCCL = %s\n" % have)

_cccl = repository_rule(
    implementation = _cccl_impl,
    attrs = {"workspace_file": attr.label(mandatory = True, allow_single_file = True)},
    environ = ["CUDA_HOME", "STILLMAP_CUDA_INCLUDE", "STILLMAP_CCCL_INCLUDE"],
    configure = True,
    local = True,
    doc = "NVIDIA's C++ libraries: libcu++, Thrust and CUB (STILLMAP_CCCL_INCLUDE, the toolkit's, PyPI's), or nothing.",
)

_PYTHON_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _python_impl(ctx):
    # The Python whose headers are there: STILLMAP_PYTHON, the system's, or the first in the path.
    # Without one, what is written for Python has no targets.
    given = ctx.os.environ.get("STILLMAP_PYTHON", "")
    candidates = [given] if given else ["/usr/bin/python3", str(ctx.which("python3") or "")]
    show = "import sysconfig, sys; print(sys.executable, sysconfig.get_paths()['include'])"
    for candidate in candidates:
        if not candidate or not ctx.path(candidate).exists:
            continue
        answer = ctx.execute([candidate, "-c", show])
        words = answer.stdout.strip().split(" ")
        if answer.return_code or len(words) != 2 or not ctx.path(words[1] + "/Python.h").exists:
            continue
        ctx.symlink(words[1], "include")
        ctx.file("BUILD", _PYTHON_BUILD)
        ctx.file("have.bzl", "HAVE_PYTHON = True\nPYTHON = \"%s\"\n" % words[0])
        return
    ctx.file("BUILD", "")
    ctx.file("have.bzl", "HAVE_PYTHON = False\nPYTHON = \"\"\n")

_python = repository_rule(
    implementation = _python_impl,
    environ = ["STILLMAP_PYTHON", "PATH"],
    configure = True,
    local = True,
    doc = "Python.h and the interpreter that it belongs to (on Debian: python3-dev), or nothing.",
)

def _nanobind_impl(ctx):
    # From PyPI, where tools/setup.sh has put it. Without it the module for Python has no target.
    root = ctx.path(ctx.attr.workspace_file).dirname
    found = root.get_child(".cache").get_child("nanobind")
    have = found.get_child("src").exists
    if have:
        for folder in ["include", "src", "ext"]:
            ctx.symlink(found.get_child(folder), folder)
        ctx.symlink(ctx.attr.build_file, "BUILD")
    else:
        ctx.file("BUILD", "")
    ctx.file("have.bzl", "HAVE_NANOBIND = %s\n" % have)

_nanobind = repository_rule(
    implementation = _nanobind_impl,
    attrs = {
        "workspace_file": attr.label(mandatory = True, allow_single_file = True),
        "build_file": attr.label(mandatory = True, allow_single_file = True),
    },
    configure = True,
    local = True,
    doc = "nanobind from PyPI, or nothing.",
)

def declare_dependencies(existing = {}):
    """Declares every repository that Stillmap's BUILD files name, save @rules_cc."""
    for name in _DEPENDENCIES:
        if name not in existing:
            _dependency(
                name = name,
                entry = name,
                build_file = Label("//tools/build/third_party:%s.BUILD" % name),
            )
    if "cuda" not in existing:
        _cuda_headers(name = "cuda", workspace_file = Label("//:WORKSPACE"))
    if "cccl" not in existing:
        _cccl(name = "cccl", workspace_file = Label("//:WORKSPACE"))
    if "mpi" not in existing:
        _mpi(name = "mpi")
    if "ucx" not in existing:
        _ucx(name = "ucx")
    if "python" not in existing:
        _python(name = "python")
    if "nanobind" not in existing:
        _nanobind(
            name = "nanobind",
            workspace_file = Label("//:WORKSPACE"),
            build_file = Label("//tools/build/third_party:nanobind.BUILD"),
        )

def stillmap_dependencies():
    """For a WORKSPACE. What it has already declared under one of these names is left alone."""
    declare_dependencies(existing = native.existing_rules())
