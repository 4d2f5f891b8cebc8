"""How Stillmap's own targets are compiled, and how its tests meet their drivers."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library")
load("//tools/build:batches.bzl", "batched")
load("//tools/build:modules.bzl", "STILLMAP_INTERNAL_FOLDERS", "STILLMAP_MODULES", "STILLMAP_SIMULATOR")
load("//tools/build:profiles.bzl", "HOSTCUDA_PROFILES")

STILLMAP_COPTS = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
]

# For vmm/driver, which looks for the simulator.
SIMULATOR_DEFINES = [
    "STILLMAP_SIMULATOR=\\\"%s\\\"" % STILLMAP_SIMULATOR,
    "STILLMAP_SIMULATOR_VARIABLE=\\\"STILLMAP_%s\\\"" % STILLMAP_SIMULATOR.upper(),
]

# For the libraries: only what is marked for export leaves them.
STILLMAP_LIBRARY_COPTS = STILLMAP_COPTS + [
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
]

_HOSTCUDA = Label("//hostcuda:libcuda.so.1")
_PLAIN_HOSTCUDA = Label("//hostcuda:plain/libcuda.so.1")

def _driver_test_impl(ctx):
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(
        output = executable,
        target_file = ctx.executable.binary,
        is_executable = True,
    )
    environment = {"STILLMAP_DRIVER": ctx.attr.driver}
    files = []
    if ctx.attr.driver == "host":
        files = ctx.files.hostcuda
        environment["STILLMAP_HOSTCUDA"] = files[0].short_path
        environment["HOSTCUDA"] = "profile=" + ctx.attr.profile
    elif ctx.attr.driver == "plain":
        files = ctx.files.plain_hostcuda
        environment["STILLMAP_DRIVER"] = files[0].short_path
        environment["STILLMAP_REQUIRE_GPU"] = "1"
        environment["HOSTCUDA"] = "profile=" + ctx.attr.profile + ",memory=8G"
    runfiles = ctx.runfiles(files = files).merge(ctx.attr.binary[DefaultInfo].default_runfiles)
    return [
        DefaultInfo(executable = executable, runfiles = runfiles),
        testing.TestEnvironment(environment),
    ]

driver_test = rule(
    implementation = _driver_test_impl,
    test = True,
    attrs = {
        "binary": attr.label(mandatory = True, executable = True, cfg = "target"),
        "driver": attr.string(default = "host", values = ["host", "plain", "cuda"]),
        "profile": attr.string(default = "h200"),
        "hostcuda": attr.label(default = _HOSTCUDA, allow_files = True),
        "plain_hostcuda": attr.label(default = _PLAIN_HOSTCUDA, allow_files = True),
    },
    doc = "Runs a GoogleTest program on one driver: hostcuda as one profile, or the machine's.",
)

def stillmap_tests(name, srcs, deps = [], data = [], profiles = HOSTCUDA_PROFILES, plain = False, cuda = False, size = "medium", tsan = ["h200"], shards = 1):
    """One program of one kind of test, and a Bazel test for each driver it runs on.

    Args:
      name: the kind; the program is <name>_program, the tests are <name>_<profile>.
      srcs: its sources. None: no targets.
      deps: what it needs beside Stillmap and the test support.
      data: programs and files that it needs when it runs.
      profiles: the profiles of hostcuda it runs on.
      plain: also as on a GPU (hostcuda with nothing to steer it by), as <name>_plain; such a
        program goes into the bundle of tools/gpu/bundle.
      cuda: also on the machine's own driver, as <name>_cuda.
      size: Bazel's test size.
      shards: processes among which the cases of a run are divided.
      tsan: the profiles that are worth a run under ThreadSanitizer. None where nothing but one
        thread is tested, or where the threads are those that another kind tests.
    """
    if not srcs:
        return
    program = name + "_program"
    batched(
        cc_binary,
        name = program,
        testonly = True,
        srcs = srcs,
        copts = STILLMAP_COPTS,
        data = data,
        deps = [":support"] + deps,
    )
    for profile in profiles:
        driver_test(
            name = "%s_%s" % (name, profile.replace(":", "_").replace("-", "_")),
            binary = ":" + program,
            profile = profile,
            shard_count = shards,
            size = size,
            tags = ["profile-" + profile, "kind-" + name] +  # ./test --profile, --without
                   ([] if profile in tsan else ["no-threads"]),  # ./test --tsan
        )
    if plain:
        driver_test(
            name = name + "_plain",
            binary = ":" + program,
            driver = "plain",
            shard_count = shards,
            size = size,
            tags = ["kind-" + name, "plain", "no-threads"],
        )
    if cuda:
        driver_test(
            name = name + "_cuda",
            binary = ":" + program,
            driver = "cuda",
            size = size,
            # A sandbox would hide the device; two at once would fight for its memory.
            tags = ["exclusive", "gpu", "local", "no-threads"],
        )

def _header_alone_checks(name, headers, deps):
    """Compiles each header by itself: a source file with one #include."""
    sources = []
    for label, include in headers.items():
        target = "%s_%s" % (name, label.replace("/", "_").replace(".", "_"))
        native.genrule(
            name = target + "_source",
            outs = [target + ".cpp"],
            cmd = "printf '#include \"%s\"\\n#include \"%s\"\\n' > $@" % (include, include),
        )
        sources.append(":" + target + ".cpp")
    cc_library(
        name = name,
        testonly = True,
        srcs = sources,
        copts = STILLMAP_COPTS,
        deps = deps,
    )

def stillmap_library(name, deps = [], linkopts = ["-pthread"], exclude = [], local_defines = [], **kwargs):
    """The library of the package it is called in, sub-folders included.

    A file's path is its include: checkpoint/image/reader.h is "stillmap/checkpoint/image/reader.h".
    The libraries of Stillmap that it uses are those of modules.bzl.

    Args:
      name: the target; the package's last folder.
      deps: libraries of others that it uses.
      linkopts: linker options.
      exclude: sources of the folder that are not part of the library.
      local_defines: macros of its sources.
      **kwargs: passed to cc_library.
    """
    folder = native.package_name()
    sources = native.glob(["**/*.cpp"], exclude = exclude)
    headers = native.glob(["**/*.h"], exclude = exclude)
    batched(
        cc_library,
        name = name,
        srcs = sources,
        hdrs = headers,
        copts = STILLMAP_LIBRARY_COPTS,
        include_prefix = "stillmap/" + folder,
        linkopts = linkopts,
        local_defines = local_defines,
        strip_include_prefix = "",
        deps = deps + ["//" + module for module in STILLMAP_MODULES[folder]],
        **kwargs
    )

    # The internal ones. Those with a source of the same name need no check: it includes them first, which
    # tools/check/includes.py checks. Installed headers are compiled alone by tests/system/install.
    _header_alone_checks(
        name = "headers_alone",
        headers = {
            header: "stillmap/%s/%s" % (folder, header)
            for header in headers
            if header[:-len(".h")] + ".cpp" not in sources and
               [part for part in header.split("/")[:-1] if part in STILLMAP_INTERNAL_FOLDERS]
        },
        deps = [":" + name],
    )
