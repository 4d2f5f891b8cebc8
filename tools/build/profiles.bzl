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

# Differ from h200 in one attribute of the device. The tests that ask for it restart hostcuda as that
# machine.
HOSTCUDA_OTHER_PROFILES = ["integrated"]

# Those that differ in what the driver can do. a100 and mig differ from h200 only in the size, the
# multiprocessors and the identity of the device, which the kinds vmm, conformance, handoff and
# process test; the kinds that run on these profiles would prove the same once more there.
HOSTCUDA_CAPABILITY_PROFILES = [p for p in HOSTCUDA_PROFILES if p not in ["a100", "mig"]]
