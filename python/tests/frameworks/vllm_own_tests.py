"""Runs vLLM's own tests of the memory of its sleep mode without Stillmap and with it, and prints a table.

    vllm_own_tests.py vllm-0.33.0.tar.gz      vLLM's source archive from PyPI; in an environment that has vLLM,
                                              pytest and tblib, on hostcuda with kernels=skip and memory=4G

No kernel runs on hostcuda, so comparisons of values that one computes fail with either allocator: the tests run as
they are, and once more without these comparisons. It exits with 1 where a test fails with Stillmap only.
docs/vllm.md says what came of it.
"""

import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

ALLOCATOR = "tests/basic_correctness/memory/cumem/test_cumem.py"
BACKEND = "tests/v1/worker/test_sleep_mode_backend.py"
FILES = (ALLOCATOR, BACKEND, "tests/utils.py")
# Two generate with a model from the network; one looks at what vLLM's own backend says that it cannot keep.
LEFT_OUT = "not preserves_generation and not only_weights_asleep and not capability_flags"
VALUES = r"^( *)assert (?:torch\.(?:allclose|equal|all)|int)\(.*\)(?: == .*)?$"
# Attributes and calls inside vLLM's own allocator.
OF_THEIRS = (r'^( *)assert len\(allocator\.allocator_and_pools\["workspace"\]\) == 2$',
             r"^( *)assert device_index in sync_devices$")


def pytest_configure(config):
    """As a plugin of pytest: ours in the place of theirs."""
    import stillmap.vllm
    import vllm.device_allocator.sleep_mode_backend as theirs
    from stillmap.vllm import selection
    from stillmap.vllm.backend import StillmapBackend
    from stillmap.vllm.options import Options

    stillmap.vllm.register()
    selection._options = Options()  # as an engine's configuration selects it
    theirs.CuMemBackend = StillmapBackend


def unpack(archive, files, folder):
    with tarfile.open(archive) as source:
        top = source.getnames()[0].split("/")[0]
        for file in files:
            at = pathlib.Path(folder, file)
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_bytes(source.extractfile(top + "/" + file).read())
            for package in [p for p in at.parents if folder in str(p.parent)]:
                (package / "__init__.py").touch()


def without(patterns, text):
    for pattern in patterns:
        text, found = re.subn(pattern, r"\1pass", text, flags=re.M)
        assert found, "the tests have no line like " + pattern
    return text


def run(folder, with_ours):
    arguments = ["-p", pathlib.Path(__file__).stem] if with_ours else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=line", "-p", "no:cacheprovider", "-k", LEFT_OUT, *arguments,
         ALLOCATOR, BACKEND],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__)), "VLLM_NO_USAGE_STATS": "1"})
    outcomes = {test: outcome for outcome, test in re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, re.M)}
    if not outcomes:
        sys.exit(done.stdout)
    return outcomes


def main():
    worse = []
    print("| tests | allocator | run | passed |")
    with tempfile.TemporaryDirectory() as folder:
        unpack(sys.argv[1], FILES, folder)
        allocator = pathlib.Path(folder, ALLOCATOR)
        as_it_is = allocator.read_text()
        for tests, values in (("as they are", True), ("without comparisons of values", False)):
            outcomes = []
            for ours in (False, True):
                left_out = ([] if values else [VALUES]) + ([] if values or not ours else list(OF_THEIRS))
                allocator.write_text(without(left_out, as_it_is))
                outcomes.append(run(folder, ours))
                print("| %s | %s | %d | %d |" % (tests, "stillmap" if ours else "vLLM's own", len(outcomes[-1]),
                                                 list(outcomes[-1].values()).count("PASSED")), flush=True)
            theirs, ours = outcomes
            worse += ["%s: %s" % (tests, test) for test, outcome in ours.items()
                      if outcome != "PASSED" and theirs.get(test) == "PASSED"]
    for test in worse:
        print("only with Stillmap:", test)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
