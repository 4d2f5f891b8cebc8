#!/usr/bin/env python3
"""A program keeps to the memory limit of its control group.

    tools/check/limits.py

In a mount namespace of its own, a folder with the files of Linux's controller dmem, as CUDA's MPS v3 uses them, is in
the place of /sys/fs/cgroup: no kernel here has a driver that would make them. `stillmap doctor` shows the limits, and a
program that nobody changed gets no more memory, although the device has some. Without these files the doctor shows what
NVML has, and `stillmap run` gives it to its program, which so keeps to it before the driver enforces it. Needs root, and the command and the
tests' programs as Bazel builds them.
"""
import contextlib
import ctypes
import os
import pathlib
import subprocess
import sys

from operated_machine import BUILT, Machine

GROUPS = pathlib.Path("/sys/fs/cgroup")
MiB = 1 << 20


def own_group():
    for line in pathlib.Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        if line.startswith("0::/"):
            return GROUPS / line[len("0::/"):]
    sys.exit("limits: this process is in no control group of version 2")


def pci_address(machine):
    """Of hostcuda's device 0."""
    os.environ.update(machine.environment)
    driver = ctypes.CDLL(str(BUILT / "hostcuda" / "libcuda.so.1"))
    text = ctypes.create_string_buffer(32)
    assert driver.cuInit(0) == 0 and driver.cuDeviceGetPCIBusId(text, 32, 0) == 0
    return text.value.decode()


def allocate(machine, blocks, *options):
    """What a program says that allocates this many blocks of 3 MiB under `stillmap run`, and its errors."""
    done = subprocess.run([BUILT / "tools" / "stillmap", "run", *options, "--", BUILT / "tests" / "preload_operated",
                           "1"],
                          env={**machine.environment,
                               "STILLMAP_PRELOAD_LIBRARY": str(BUILT / "preload" / "libstillmap_preload.so")},
                          input=f"allocate {blocks}\n", text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          check=False)
    return done.stdout.splitlines()[1:], done.stderr


def main():
    if os.environ.get("STILLMAP_CHECK_NAMESPACE") is None:
        os.execvpe("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv],
                   {**os.environ, "STILLMAP_CHECK_NAMESPACE": "1"})
    subprocess.run(["mount", "-t", "tmpfs", "none", GROUPS], check=True)
    with contextlib.ExitStack() as stack:
        machine = Machine(stack, "limits")
        assert allocate(machine, 50, "-q")[0] == ["ok"], "without a limit"
        group = own_group()
        group.mkdir(parents=True, exist_ok=True)
        region = f"nvidia/{pci_address(machine)}/vidmem"
        for name, value in (("max", 100 * MiB), ("min", 40 * MiB), ("current", 7 * MiB)):
            (group / f"dmem.{name}").write_text(f"{region} {value}\n", encoding="ascii")
        doctor = machine.run("doctor")
        lines = " ".join(doctor.split())
        print(next(line for line in doctor.splitlines() if "limits of the system" in line).strip())
        for text in ("at most 100 MiB for this control group (dmem.max), of which 7 MiB are used",
                     "40 MiB are certain (dmem.min)"):
            assert text in lines, doctor
        assert allocate(machine, 20, "-q")[0] == ["ok"], "within the limit"
        said, error = allocate(machine, 50, "-q")
        print("50 blocks of 3 MiB:", error.splitlines()[0])
        assert not said and "cuMemAlloc: 2" in error, (said, error)
        # Without the controller, the driver keeps the limits, and NVML has them: as hostcuda's NVML, from this file.
        for name in ("max", "min", "current"):
            (group / f"dmem.{name}").unlink()
        assert "limits of the system" not in machine.run("doctor"), "limits that are gone"
        (group / "hostcuda.limits").write_text(f"{30 * MiB} {90 * MiB} {5 * MiB}\n", encoding="ascii")
        doctor = machine.run("doctor")
        lines = " ".join(doctor.split())
        for text in ("at most 90 MiB for this control group (NVML), of which 5 MiB are used", "30 MiB are certain (NVML)",
                     "the driver refuses what is beyond"):
            assert text in lines, doctor
        print(next(line for line in doctor.splitlines() if "limits of the system" in line).strip())
        # A program gets them from `stillmap run`. hostcuda's driver itself enforces none.
        said, error = allocate(machine, 20)
        first = error.splitlines()[0]
        print(first)
        assert said == ["ok"] and first.startswith("stillmap: GPU-") and "at most 90 MiB" in first, (said, error)
        said, error = allocate(machine, 50, "-q")
        assert not said and error.startswith("cuMemAlloc: 2"), (said, error)
        assert not allocate(machine, 20, "-q", "--limit", "20MiB")[0], "the smaller limit is the user's"
        assert not allocate(machine, 50, "-q", "--limit", "500MiB")[0], "the smaller limit is the driver's"
        assert not allocate(machine, 50, "-q", "--allocator", "driver")[0], "of what the driver serves, too"
    print("a program keeps to the limit of its control group")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    main()
