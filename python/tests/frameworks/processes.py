"""Each case of these tests is a program of its own: an allocator is chosen once in a process.

They need the framework, and a GPU or hostcuda with kernels=skip,memory=4G: tools/frameworks.sh.
"""

import importlib.metadata
import importlib.util
import pathlib
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import support

# Tensors of known bytes, whether they still have them, and the device's free memory.
TENSORS = """
import os, sys, torch
import stillmap, stillmap.torch as st
MiB = 1 << 20
def known(n, seed=1):
    return (torch.arange(n, dtype=torch.int64) * (2 * seed + 1) % 251).to(torch.uint8)
def filled(n, seed=1):
    t = torch.empty(n, dtype=torch.uint8, device="cuda")
    t.copy_(known(n, seed))
    return t
def right(t, seed=1):
    return torch.equal(t.cpu(), known(t.numel(), seed))
def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]
"""


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, "not installed: " + ", ".join(missing))


def torch_version():
    if importlib.util.find_spec("torch") is None:
        return (0, 0)  # needs("torch") skips the tests
    return tuple(int(n) for n in importlib.metadata.version("torch").split(".")[:2])


def torch_needs(major, minor, why):
    """For what PyTorch itself does in later versions only."""
    return unittest.skipIf(torch_version() < (major, minor), why)


class TestCase(support.TestCase):
    maxDiff = None
    preamble = ""  # what each program begins with

    def program(self, code, *arguments, timeout=300, **options):
        """Runs the preamble and the code in a new process, which has to end by itself. Returns its output."""
        return self.run_python(self.preamble + textwrap.dedent(code), *arguments, timeout=timeout, cwd=self.folder,
                               **options)
