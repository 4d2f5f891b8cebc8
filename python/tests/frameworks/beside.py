"""Runs the frameworks' own memory tests without and with Stillmap, and prints a table: docs/frameworks.md has one.

    beside.py numba | cuda_core        in an environment that has it, by `hostcuda run --config memory=4G` with
                                    --kernels numba, or skip for cuda_core

Numba's tests need pytest and filecheck. PyPI has no tests of cuda.core: hostcuda/clients/cuda_core_uses.py takes their place.
"""

import os
import pathlib
import re
import subprocess
import sys

USES = pathlib.Path(__file__).resolve().parents[3] / "hostcuda/clients/cuda_core_uses.py"
WITH_OURS = """
import sys, unittest
sys.path.insert(0, sys.argv.pop(1))
import cuda_core_uses
from stillmap.cuda_core import MemoryResource
setup = cuda_core_uses.Uses.setUp
def with_ours(self):
    setup(self)
    self.addCleanup(setattr, self.device, "memory_resource", self.device.memory_resource)
    self.device.memory_resource = MemoryResource(self.device.device_id)
cuda_core_uses.Uses.setUp = with_ours
unittest.main(cuda_core_uses)
"""
NUMBA = ["-m", "numba.runtests", "-v", "numba.cuda.tests.cudadrv", "numba.cuda.tests.cudapy.test_ipc",
         "numba.cuda.tests.cudapy.test_cuda_array_interface"]
RUNS = {
    "numba": [("without", NUMBA, {}),
              ("with", NUMBA, {"NUMBA_CUDA_MEMORY_MANAGER": "stillmap.numba"})],
    "cuda_core": [("without", [str(USES)], {}),
                  ("with", ["-c", WITH_OURS, str(USES.parent)], {})],
}


def main():
    failed = []
    for name, arguments, variables in RUNS[sys.argv[1]]:
        done = subprocess.run([sys.executable, *arguments], env={**os.environ, **variables}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        ran = re.findall(r"^Ran (\d+) tests?", done.stdout, re.M)
        skipped = re.findall(r"skipped=(\d+)", done.stdout)
        text = done.stdout.replace("(cuda_core_uses.", "(__main__.")
        failed.append(set(re.findall(r"^(?:FAIL|ERROR): (.*)$", text, re.M)))
        if not ran:
            sys.exit(done.stdout)
        print("| %s | %s | %s | %s | %d |" % (
            sys.argv[1], name, ran[-1], skipped[-1] if skipped else 0, len(failed[-1])))
    for test in sorted(failed[1] - failed[0]):
        print("only with Stillmap:", test)
    return 1 if failed[1] - failed[0] else 0


if __name__ == "__main__":
    sys.exit(main())
