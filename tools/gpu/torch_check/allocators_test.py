"""Tests of how each allocator is selected and what it reports, with a simulated PyTorch."""

import types
import unittest

import allocators
from gauge import Gauge, NoGauge


class AllocatorsTest(unittest.TestCase):
    def test_settings_of_others_are_not_inherited(self):
        inherited = {
            "PATH": "/bin", "PYTORCH_CUDA_ALLOC_CONF": "x", "PYTORCH_ALLOC_CONF": "x",
            "STILLMAP_TORCH_LIMIT": "1",
        }  # fmt: skip
        self.assertEqual(allocators.environment("default", inherited), {"PATH": "/bin"})
        self.assertEqual(
            allocators.environment("async", inherited)["PYTORCH_CUDA_ALLOC_CONF"],
            "backend:cudaMallocAsync",
        )

    def test_one_allocator_without_a_gpu(self):
        self.assertEqual(allocators.names("cpu"), ["default"])
        self.assertEqual(allocators.names("cuda")[-1], allocators.STILLMAP)


class Cuda:
    """As much of torch.cuda as the gauge asks."""

    def __init__(self):
        self.free = 1000
        self.stats = {
            "num_device_alloc": 3,
            "reserved_bytes.all.peak": 400,
            "allocated_bytes.all.peak": 300,
        }

    def init(self):
        pass

    def synchronize(self):
        pass

    def mem_get_info(self):
        return self.free, 2000

    def memory_stats(self):
        return self.stats

    def get_allocator_backend(self):
        return "native"


class GaugeTest(unittest.TestCase):
    def setUp(self):
        self.cuda = Cuda()
        self.torch = types.SimpleNamespace(cuda=self.cuda)

    def test_peaks_are_the_allocators_and_the_devices(self):
        gauge = Gauge(self.torch, "default", "")
        for free in (900, 500, 800):
            self.cuda.free = free
            gauge.sample()
        self.assertEqual(
            gauge.figures(),
            {
                "peak_reserved_bytes": 400,
                "peak_allocated_bytes": 300,
                "utilisation": 0.75,
                "peak_of_device_bytes": 500,
                "backend": "native",
            },
        )
        self.assertEqual(gauge.counters(), {"num_device_alloc": 3})

    def test_what_came_before_the_beginning_does_not_count(self):
        gauge = Gauge(self.torch, "default", "")
        self.cuda.free = 300
        gauge.begin()
        self.cuda.free = 250
        self.assertEqual(gauge.figures()["peak_of_device_bytes"], 50)

    def test_the_drivers_own_allocator_has_no_counters(self):
        self.assertIsNone(Gauge(self.torch, "async", "").counters())

    def test_without_a_gpu_nothing_is_known(self):
        self.assertIsNone(NoGauge().counters())
        self.assertEqual(set(NoGauge().figures().values()), {None})


if __name__ == "__main__":
    unittest.main()
