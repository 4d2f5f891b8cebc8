"""The one list of Stillmap's libraries: a folder each, and the libraries that it may include.

Read by the BUILD files (defs.bzl), CMake (cmake/StillmapModules.cmake), pkg-config files,
tools/check/includes.py, tools/check/format.sh and clang-tidy. Keep one line for each library, in this
form: other readers than Bazel match it line by line.
"""

STILLMAP_MODULES = {
    "vmm": [],
    "allocators": ["vmm"],
    "allocators/replay": ["allocators", "vmm"],
    "allocators/torch": ["allocators", "vmm"],
    "checkpoint/common": ["vmm"],
    "checkpoint/suspend": ["checkpoint/common", "vmm"],
    "checkpoint/image": ["vmm"],
    "checkpoint/snapshot": ["checkpoint/common", "checkpoint/image", "vmm"],
    "checkpoint/handoff": ["checkpoint/common", "vmm"],
    "checkpoint/process": ["checkpoint/suspend", "checkpoint/common", "vmm"],
    "checkpoint/migration": ["checkpoint/snapshot", "checkpoint/image", "checkpoint/common", "vmm"],
    "checkpoint/control": ["checkpoint/migration", "checkpoint/handoff", "checkpoint/snapshot", "checkpoint/image", "checkpoint/suspend", "checkpoint/common", "vmm"],
    "checkpoint/mpi": ["checkpoint/snapshot", "checkpoint/image", "checkpoint/common", "vmm"],
}
