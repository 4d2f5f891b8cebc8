"""The machines that hostcuda can be. A new profile is one line here, which CMake and ./test read;
every test that uses a driver then runs on it."""

HOSTCUDA_PROFILES = [
    "h200",
    "a100",
    "multi:2",
    "wsl2",
    "mig",
    "vgpu-no-vmm",
    "old-driver-450",
]
