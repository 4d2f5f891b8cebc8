"""Programs of other people's frameworks, which know nothing of Stillmap, under `stillmap run`."""

import importlib.util
import json
import pathlib
import sys
import unittest

from processes import TestCase, needs

TORCH = """
import torch
kept, seen = [], 0
for turn in range(3):
    for i in range(200):
        n = 1 << (i % 19 + 4)
        host = (torch.arange(n, dtype=torch.int64) * (2 * (i % 7) + 1) % 251).to(torch.uint8)
        kept.append((host, host.to("cuda")))
        if len(kept) > 50:
            host, device = kept.pop(i * 7 % 50)
            assert torch.equal(device.cpu(), host)
            seen += 1
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    one = torch.arange(100_000, dtype=torch.int32).to("cuda", non_blocking=True)
side.synchronize()
assert torch.equal(one.cpu(), torch.arange(100_000, dtype=torch.int32))
assert all(torch.equal(device.cpu(), host) for host, device in kept) and seen == 550
"""

LIMITED = """
import torch
free, total = torch.cuda.mem_get_info()
assert total == 1 << 30 and free <= total, (free, total)
first = torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
try:
    torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
    raise SystemExit("the limit does not hold")
except torch.OutOfMemoryError:
    pass
del first
torch.cuda.empty_cache()
torch.empty(600 << 20, dtype=torch.uint8, device="cuda").fill_(0)
free, total = torch.cuda.mem_get_info()
assert 0 <= free <= total == 1 << 30, (free, total)
"""

# A tensor of each size goes to the worker, which sees its bytes, changes them, and sends one of its own.
SHARING = """
import os
import torch
import torch.multiprocessing as mp

SIZES = [1, 7, 1000, 4096, 1 << 20, (1 << 20) + 1, (2 << 20) - 512, 5 << 20, 20 << 20, 64 << 20]

def known(n, seed):
    return (torch.arange(n, dtype=torch.int64) * (2 * seed + 1) % 251).to(torch.uint8)

def worker(tensors, results, back):
    for seed, n in enumerate(SIZES):
        tensor = tensors.get()
        assert tensor.is_cuda and torch.equal(tensor.cpu(), known(n, seed)), n
        tensor.copy_(known(n, seed + 100))
        torch.cuda.synchronize()
        del tensor
        results.put(n)
    own = known(3 << 20, 200).to("cuda")
    back.put(own)
    assert results.get() == "seen"
    del own
    gone = tensors.get()
    results.put("has it")
    assert tensors.get() == "freed"
    assert torch.equal(gone.cpu(), known(8 << 20, 3))

if __name__ == "__main__":
    context = mp.get_context("spawn")
    tensors, results, back = context.Queue(), context.Queue(), context.Queue()
    process = context.Process(target=worker, args=(tensors, results, back))
    process.start()
    for turn, n in enumerate(SIZES):
        tensor = known(n, turn).to("cuda")
        tensors.put(tensor)
        assert results.get(timeout=120) == n
        assert torch.equal(tensor.cpu(), known(n, turn + 100)), n
        del tensor
    received = back.get(timeout=120)
    assert torch.equal(received.cpu(), known(3 << 20, 200))
    results.put("seen")
    kept = known(8 << 20, 3).to("cuda")
    tensors.put(kept)
    assert results.get(timeout=120) == "has it"
    del kept
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    other = torch.zeros(100 << 20, dtype=torch.uint8, device="cuda").fill_(1)
    tensors.put("freed")
    process.join(120)
    assert process.exitcode == 0, process.exitcode
    del received
"""

UNSHARED = """
import torch
from torch.multiprocessing.reductions import reduce_tensor
try:
    reduce_tensor(torch.ones(10).to("cuda"))
    raise SystemExit("it has a handle")
except RuntimeError as e:
    assert "invalid argument" in str(e), e
"""

NUMBA = """
import numpy as np
from numba import cuda
host = np.arange(1_000_000, dtype=np.int32)
device = cuda.to_device(host)
kept = [cuda.device_array(10**i, np.uint8) for i in range(1, 8)]
assert (device.copy_to_host() == host).all()
free, total = cuda.current_context().get_memory_info()
assert free <= total
"""

CUDA_CORE = """
from cuda.core import Device
device = Device()
device.set_current()
stream = device.create_stream()
for size in (100, 10_000, 1 << 20, 1 << 26):
    device.allocate(size, stream=stream).close(stream)
stream.sync()
"""


# Numba's own tests of what allocates, copies and frees memory: those that did not pass go to outcome.json.
NUMBAS_OWN_TESTS = """
import json, unittest
names = ["array_attr", "context_stack", "cuda_array_slicing", "cuda_devicerecord", "cuda_memory", "cuda_ndarray",
         "deallocations", "emm_plugins", "events", "host_alloc", "managed_alloc", "pinned", "reset_device",
         "select_device", "streams"]
suite = unittest.defaultTestLoader.loadTestsFromNames("numba.cuda.tests.cudadrv.test_" + name for name in names)
result = unittest.TextTestRunner(verbosity=0).run(suite)
others = sorted((kind, test.id()) for kind in ("failures", "errors", "skipped") for test, why in getattr(result, kind))
with open("outcome.json", "w") as to:
    json.dump({"ran": result.testsRun, "others": others}, to)
"""


needs_cuda_core = unittest.skipUnless(
    importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.core"), "not installed: cuda.core")


class Programs(TestCase):
    def run_program(self, code, *options, processes=1, **variables):
        """Runs the code by `stillmap run`, and returns what the program did."""
        program, stats = pathlib.Path(self.folder, "program.py"), pathlib.Path(self.folder, "stats.json")
        program.write_text(code, encoding="utf-8")
        self.run_python("import sys, stillmap.__main__; stillmap.__main__.main(sys.argv[1:])", "run", "--stats", str(stats),
                        *options, "--", sys.executable, str(program), cwd=self.folder, timeout=300, quiet=False,
                        **variables)
        all_did = json.loads(stats.read_text(encoding="utf-8"))
        self.assertEqual(len(all_did), processes)
        return all_did[0]

    def served(self, did):
        return sum(device["allocations"] for device in did["devices"])

    @needs("torch")
    def test_torch_with_its_own_allocator(self):
        did = self.run_program(TORCH)
        self.assertGreater(self.served(did), 0)
        self.assertEqual(did["passed_on"]["not_served"]["calls"], 0)

    @needs("torch")
    def test_torch_with_cuda_malloc_async(self):
        did = self.run_program(TORCH, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
        self.assertGreater(self.served(did), 600)
        self.assertEqual(did["passed_on"]["other_pools"]["calls"], 0)

    @needs("torch")
    def test_torch_with_expandable_segments_maps_memory_itself(self):
        did = self.run_program(TORCH, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        self.assertGreater(did["passed_on"]["own_mappings"]["calls"], 0)

    @needs("torch")
    def test_torch_keeps_to_a_limit(self):
        did = self.run_program(LIMITED, "--limit", "1G")
        self.assertLessEqual(did["devices"][0]["committed_peak_bytes"], 1 << 30)
        self.assertGreater(did["devices"][0]["out_of_memory"], 0)

    @needs("torch")
    def test_torch_sends_tensors_to_other_processes(self):
        did = self.run_program(SHARING, "--ipc", "on", processes=2)
        self.assertGreater(self.served(did), 0)
        self.assertEqual(did["passed_on"]["not_served"]["calls"], 0)

    @needs("torch")
    def test_torch_sends_no_tensors_where_the_memory_is_not_to_be_shared(self):
        self.assertGreater(self.served(self.run_program(UNSHARED, "--ipc", "off")), 0)

    @needs("numba")
    def test_numba(self):
        self.assertGreater(self.served(self.run_program(NUMBA)), 7)

    @needs("numba", "pytest", "filecheck")  # which they import
    def test_numbas_own_tests_end_as_without_the_preload(self):
        outcome = pathlib.Path(self.folder, "outcome.json")
        self.run_python(NUMBAS_OWN_TESTS, cwd=self.folder, timeout=300, quiet=False)
        without = json.loads(outcome.read_text(encoding="utf-8"))
        self.assertGreater(without["ran"] - len(without["others"]), 150)
        outcome.unlink()
        did = self.run_program(NUMBAS_OWN_TESTS)
        self.assertEqual(json.loads(outcome.read_text(encoding="utf-8")), without)
        self.assertGreater(self.served(did), 200)
        self.assertEqual(did["passed_on"]["not_served"]["calls"], 0)

    @needs_cuda_core
    def test_cuda_core(self):
        did = self.run_program(CUDA_CORE)
        self.assertEqual(self.served(did), 4)
        self.assertEqual(did["passed_on"]["other_pools"]["calls"], 0)


if __name__ == "__main__":
    unittest.main()
