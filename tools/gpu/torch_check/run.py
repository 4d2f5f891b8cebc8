#!/usr/bin/env python3
"""Measures PyTorch with Stillmap's allocator beside PyTorch's own, on this machine's GPU.

    run.py --library libstillmap_torch.so --out results
    run.py --device cpu --quick --out results     # tries the scripts themselves, without a GPU

Each part writes torch_PART.json into the folder, and prints a table. Exit status: 0 when no row
failed. See README.md beside this."""

import argparse
import importlib
import os
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import allocators  # noqa: E402
import parts  # noqa: E402
from budget import Budget  # noqa: E402
from lab import Lab  # noqa: E402
from launcher import Launcher, WorkerFailed  # noqa: E402
from output import Result, say  # noqa: E402

FIRST_START = 120  # PyTorch from a cold disk


def options_of(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", default="", metavar="FILE", help="libstillmap_torch.so")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where to write")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--quick", action="store_true", help="tiny models; the numbers mean nothing"
    )
    parser.add_argument(
        "--only", nargs="+", choices=parts.NAMES, default=list(parts.NAMES), metavar="PART",
        help=f"some of the parts: {', '.join(parts.NAMES)}",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=420, help="for all parts; default: 420")
    options = parser.parse_args(arguments)
    if options.seconds <= 0:
        parser.error("--seconds: must be more than 0")
    if options.device == "cuda" and not os.path.isfile(options.library):
        parser.error(f"--library: there is no file {options.library!r}")
    if options.library:
        options.library = os.path.abspath(options.library)
    return options


def measure(name, options, launcher, machine, share):
    """How many rows failed. A mistake in a part is a failed row of that part."""
    result = Result(name, machine, options.out)
    part = importlib.import_module(f"parts.{name}")
    say(f"{name}: {share.seconds:.0f} s")
    try:
        part.measure(Lab(name, options, launcher, result, share, allocators.names(options.device)))
    except Exception as error:
        traceback.print_exc()
        result.add({"error": f"{type(error).__name__}: {error}"})
    result.show(part.COLUMNS)
    result.write()
    say(f"{name}: {result.path}")
    return result.failed()


def main(arguments=None):
    options = options_of(arguments)
    os.makedirs(options.out, exist_ok=True)
    failed = 0
    with Launcher(options.device, options.library) as launcher:
        weights = {name: importlib.import_module(f"parts.{name}").WEIGHT for name in options.only}
        budget = Budget(options.seconds, weights)
        say("loading PyTorch for the first time")
        try:
            machine = launcher.ask(
                "default", {"part": "machine", "tiny": True}, FIRST_START, "default"
            )
        except WorkerFailed as failure:
            say(f"PyTorch does not work here: {failure}")
            return 1
        say(", ".join(f"{name} {value}" for name, value in machine.items()))
        for name in [name for name in parts.NAMES if name in options.only]:
            failed += measure(name, options, launcher, machine, budget.begin(name))
    say("nothing failed" if failed == 0 else f"{failed} rows failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
