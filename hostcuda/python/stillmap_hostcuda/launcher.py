#!/usr/bin/env python3
"""The command `hostcuda`: runs a program on hostcuda, a CUDA driver on host memory.

This file is complete in itself: it is installed beside the libraries as the program `hostcuda`, and is a
module of the Python package.
"""
import argparse
import ctypes
import os
import pathlib
import re
import sys

PROFILES = ("h200", "a100", "multi:N", "wsl2", "mig", "vgpu-no-vmm", "old-driver-450", "integrated")
MOST_DEVICES = 31  # of multi:N
KERNELS = ("refuse", "skip")
NUMBA = "numba"  # as skip for the driver, and kernels of Numba are compiled for the host
DRIVER = "libcuda.so.1"
# Found by name by programs that load them, but for the runtime, which is preloaded: the wheels of PyTorch have an
# RPATH, which the loader reads before LD_LIBRARY_PATH.
RUNTIMES = ("libcudart.so.12", "libcudart.so.13")
# It is on no index.
PACKAGE = "in the Python package stillmap-hostcuda, which hostcuda/python/wheel.sh makes in a checkout of Stillmap: pip " \
          "install out/wheel/stillmap_hostcuda-*.whl"
MATH_LIBRARIES = "mathlibs"  # the folder of their stand-ins, which compute nothing and are preloaded likewise

DESCRIPTION = """\
Runs PROGRAM on hostcuda: it finds a CUDA driver, a CUDA runtime and an NVML that work on host memory. There is no
GPU, and compiled kernels are not executed. With --kernels skip the math libraries are replaced by ones that compute
nothing, which is what PyTorch needs. With --kernels numba the kernels of a Python program that uses Numba are run by
the CPU.
"""
EPILOG = """\
profiles:
  h200             one device of 140 GiB, compute capability 9.0 (the default)
  a100             one device of 79 GiB, compute capability 8.0
  multi:N          N devices like that of h200, 1 to 31
  wsl2             24 GiB; limits of a machine with WSL 2
  mig              a slice of 16 GiB
  vgpu-no-vmm      20 GiB, without virtual memory management and memory pools
  old-driver-450   40 GiB, driver of CUDA 11.0
  integrated       120 GiB that are the host's, as on GB10 and Jetson

examples:
  hostcuda run -- ./my_tests
  hostcuda run --profile multi:2 --config memory=4G -- python3 -m pytest
  hostcuda run --kernels skip -- python3 train.py
  hostcuda run --kernels numba -- python3 -m pytest tests_of_numba_kernels.py

Settings of the environment variable HOSTCUDA hold unless an option replaces them. A program that is linked to the
static CUDA runtime does not run on hostcuda.
"""


class Failure(Exception):
    """A message for the user, without a traceback."""


def libraries():
    """The folder of the libraries: that of this file where it is installed, lib/ in the Python package."""
    here = pathlib.Path(__file__).resolve().parent
    for folder in (here, here / "lib"):
        if (folder / DRIVER).exists():
            return folder
    raise Failure("no %s in %s or in its lib/: install hostcuda again" % (DRIVER, here))


def check_profile(profile):
    number = re.fullmatch(r"multi:(\d+)", profile)
    if number and not 1 <= int(number.group(1)) <= MOST_DEVICES:
        raise Failure("profile %s: multi:N has 1 to %d devices" % (profile, MOST_DEVICES))
    if not number and (profile not in PROFILES or profile == "multi:N"):
        raise Failure("unknown profile '%s'; there are: %s" % (profile, ", ".join(PROFILES)))


def settings(profile=None, kernels=None, config=None, base=None):
    """A configuration text, in which a later setting replaces an earlier one."""
    parts = [base] if base else []
    if profile:
        check_profile(profile)
        parts.append("profile=" + profile)
    if kernels:
        if kernels not in KERNELS:
            raise Failure("unknown kernels '%s'; there are: %s" % (kernels, ", ".join(KERNELS)))
        parts.append("kernels=" + kernels)
    if config:
        parts.append(config)
    return ",".join(parts)


def check_settings(folder, text):
    """Asks the driver, which prints the reason. It would otherwise go on with the default machine."""
    driver = ctypes.CDLL(str(folder / DRIVER))
    if text and driver.hostcuda_reset(text.encode()) != 0:
        raise Failure("invalid settings '%s'; the table of settings is in hostcuda's README" % text)


def stand_ins(folder, text):
    """The stand-ins of the math libraries, for a program whose kernels are skipped. Others need the real ones."""
    if re.findall(r"(?:^|,)kernels=(\w*)", text)[-1:] != ["skip"]:
        return []
    return sorted(str(path) for path in (folder / MATH_LIBRARIES).glob("lib*.so.*"))


def environment(folder, text, base):
    """The environment of a program that runs on hostcuda. What the user preloads stays first: sanitizers must be."""
    if re.search(r"[\s:;$]", str(folder)):
        raise Failure("the folder '%s' has a space, ':', ';' or '$' in its name, which LD_PRELOAD and LD_LIBRARY_PATH "
                      "cannot hold; install hostcuda elsewhere" % folder)
    out = dict(base)
    runtimes = [str(folder / name) for name in RUNTIMES if (folder / name).exists()]
    out["LD_LIBRARY_PATH"] = ":".join(filter(None, [str(folder), base.get("LD_LIBRARY_PATH")]))
    preloaded = ":".join(filter(None, [base.get("LD_PRELOAD"), *runtimes, *stand_ins(folder, text)]))
    if preloaded:
        out["LD_PRELOAD"] = preloaded
    out["HOSTCUDA"] = text
    return out


def inside(base, **variables):
    """The environment of a Python program that loads modules of the folder inside/ when it starts."""
    folder = pathlib.Path(__file__).resolve().parent / "inside"
    if not folder.is_dir():  # this file is the program `hostcuda`
        raise Failure("--kernels numba is " + PACKAGE)
    return dict(base, PYTHONPATH=os.pathsep.join(filter(None, [str(folder), base.get("PYTHONPATH")])), **variables)


def parser():
    top = argparse.ArgumentParser(prog="hostcuda", description="hostcuda, a CUDA driver on host memory.")
    commands = top.add_subparsers(dest="command", required=True, metavar="run|dryrun")
    run = commands.add_parser("run", help="run a program on hostcuda", description=DESCRIPTION, epilog=EPILOG,
                              usage="hostcuda run [--profile P] [--kernels refuse|skip|numba] [--config TEXT] -- PROGRAM [ARG...]",
                              formatter_class=argparse.RawDescriptionHelpFormatter)
    run.add_argument("--profile", metavar="P", help="the machine (see below)")
    run.add_argument("--kernels", metavar="refuse|skip|numba",
                     help="a kernel without a host function is not found (refuse, the default), or accepted and not "
                          "run (skip); numba: as skip, and kernels of Numba are run by the CPU")
    run.add_argument("--config", metavar="TEXT", help="further settings, as in HOSTCUDA: memory=4G,schedule=jitter:7")
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="the program and its arguments")
    commands.add_parser("dryrun", add_help=False, help="say how much device memory a PyTorch program needs")
    return top


def execute(arguments):
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        raise Failure("no program: hostcuda run [OPTIONS] -- PROGRAM [ARG...]")
    numba = arguments.kernels == NUMBA
    text = settings(arguments.profile, "skip" if numba else arguments.kernels, arguments.config,
                    os.environ.get("HOSTCUDA"))
    folder = libraries()
    check_settings(folder, text)
    variables = environment(folder, text, os.environ)
    if numba:
        variables = inside(variables, HOSTCUDA_NUMBA="1")
    sys.stdout.flush()
    try:
        os.execvpe(program[0], program, variables)
    except OSError as error:
        print("hostcuda run: cannot start %s: %s" % (program[0], error.strerror), file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def dry_run(arguments):
    try:
        from stillmap_hostcuda import dryrun  # not installed beside this file where it is the program `hostcuda`
    except ImportError:
        raise Failure("dryrun is " + PACKAGE) from None
    try:
        return dryrun.main(arguments)
    except dryrun.launcher.Failure as failure:  # the class of another import of this file, if this is __main__
        raise Failure(str(failure)) from None


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["dryrun"]:
            return dry_run(arguments[1:])
        return execute(parser().parse_args(arguments))
    except Failure as failure:
        print("hostcuda %s: %s" % (arguments[0] if arguments else "run", failure), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
