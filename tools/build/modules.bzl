"""The one list of Stillmap's libraries: a folder each, and the libraries that it may include.

STILLMAP_MODULES are installed. STILLMAP_TOOL_MODULES are not: the command, the Python module, benchmarks
and tests are linked to them, or they are libraries that programs load.

Bazel reads it (defs.bzl), and so do CMake with its packages and pkg-config files
(cmake/StillmapModules.cmake), tools/check/includes.py, tools/check/format.sh and tools/check/tidy.sh.
Those match it line by line: one line for each library, in this form, below what it uses.
"""

# Headers in a folder of one of these names are for their own module. They are not installed.
STILLMAP_INTERNAL_FOLDERS = ["internal", "engine", "admission", "driver"]

# The simulator: the driver that STILLMAP_DRIVER=host means. So are called its folder, the Python package
# stillmap_<name>, and, in capitals, the variable STILLMAP_<NAME> with its path; the functions that it has
# beside CUDA's begin with <name>_.
STILLMAP_SIMULATOR = "hostcuda"

STILLMAP_MODULES = {
    "vmm/base": [],
    "vmm": ["vmm/base"],
    "allocators": ["vmm", "vmm/base"],
    "allocators/kv": ["vmm", "vmm/base"],
    "allocators/torch": ["allocators", "vmm", "vmm/base"],
    "allocators/cccl": ["allocators", "vmm", "vmm/base"],
    "checkpoint/base": ["vmm/base"],
    "checkpoint/common": ["checkpoint/base", "vmm", "vmm/base"],
    "checkpoint/suspend": ["checkpoint/common", "checkpoint/base", "vmm", "vmm/base"],
    "checkpoint/image": ["checkpoint/base", "vmm/base"],
    "checkpoint/snapshot": ["checkpoint/common", "checkpoint/image", "checkpoint/base", "vmm", "vmm/base"],
    "checkpoint/handoff": ["checkpoint/common", "checkpoint/base", "vmm", "vmm/base"],
    "checkpoint/publication": ["checkpoint/snapshot", "checkpoint/image", "checkpoint/common", "checkpoint/base", "vmm", "vmm/base"],
    "checkpoint/prefix_cache": ["checkpoint/snapshot", "checkpoint/handoff", "checkpoint/image", "checkpoint/common", "checkpoint/base", "allocators/kv", "vmm", "vmm/base"],
    "checkpoint/process": ["checkpoint/suspend", "checkpoint/common", "checkpoint/base", "vmm", "vmm/base"],
    "checkpoint/migration": ["checkpoint/snapshot", "checkpoint/image", "checkpoint/common", "checkpoint/base", "vmm", "vmm/base"],
    "checkpoint/control": ["checkpoint/migration", "checkpoint/handoff", "checkpoint/snapshot", "checkpoint/image", "checkpoint/suspend", "checkpoint/common", "checkpoint/base", "vmm", "vmm/base"],
    "c_api": ["checkpoint/control", "checkpoint/snapshot", "checkpoint/image", "checkpoint/suspend", "checkpoint/common", "checkpoint/base", "checkpoint/migration", "checkpoint/handoff", "allocators", "vmm", "vmm/base"],
    "checkpoint/ucx": ["checkpoint/migration", "checkpoint/snapshot", "checkpoint/image", "checkpoint/common", "checkpoint/base", "vmm", "vmm/base"],
    "checkpoint/mpi": ["checkpoint/snapshot", "checkpoint/image", "checkpoint/common", "checkpoint/base", "vmm", "vmm/base"],
}

STILLMAP_TOOL_MODULES = {
    "bench/replay": ["allocators", "vmm", "vmm/base"],
    "preload": [],
    "preload/service": ["preload", "checkpoint/control", "checkpoint/snapshot", "checkpoint/suspend", "checkpoint/common", "checkpoint/base", "allocators", "vmm", "vmm/base"],
}
