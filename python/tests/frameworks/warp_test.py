"""stillmap.warp in Warp: arrays that come and go. On hostcuda nothing is copied, because Warp's static CUDA runtime
refuses it; its allocator hooks run all the same."""

import gc
import importlib.util
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from support import TestCase, device

HAVE = importlib.util.find_spec("warp") is not None
if HAVE:
    import warp as wp
    import stillmap.warp

MiB = 1 << 20


@unittest.skipUnless(HAVE, "warp-lang is not installed")
class Warp(TestCase):
    def setUp(self):
        super().setUp()
        wp.config.quiet = True
        wp.init()
        if not wp.get_cuda_devices():
            self.skipTest("Warp finds no CUDA device")
        self.memory = stillmap.warp.Allocator("cuda:0", limit=64 * MiB)
        wp.set_device_allocator("cuda:0", self.memory)
        self.addCleanup(self.memory.allocator.close)
        self.addCleanup(wp.set_device_allocator, "cuda:0", None)

    def blocks(self):
        return self.memory.allocator.stats()["total"]["blocks"]

    def test_arrays_come_and_go(self):
        made = wp.empty(1000, dtype=wp.float32, device="cuda:0")
        self.assertTrue(self.memory.allocator.owns(made.ptr))
        self.assertEqual(self.blocks(), 1)
        view = made[10:20]
        del made
        gc.collect()
        self.assertEqual(self.blocks(), 1, "a view keeps the memory")
        del view
        gc.collect()
        self.assertEqual(self.blocks(), 0)

    def test_an_array_of_another_stream(self):
        with wp.ScopedStream(wp.Stream("cuda:0")):
            made = wp.empty(1000, dtype=wp.float32, device="cuda:0")
        del made
        gc.collect()
        self.assertEqual(self.blocks(), 0)

    def test_out_of_memory(self):
        with self.assertRaisesRegex(MemoryError, "limit of the allocator"):
            wp.empty(65 * MiB, dtype=wp.uint8, device="cuda:0")
        self.assertEqual(self.blocks(), 0)

    def test_freed_after_close(self):
        made = wp.empty(9, dtype=wp.float32, device="cuda:0")
        self.memory.allocator.close()
        del made
        gc.collect()
        with self.assertRaisesRegex(ValueError, "closed"):
            wp.empty(9, dtype=wp.float32, device="cuda:0")

    def test_use_gives_each_device_its_own(self):
        for made, at in zip(stillmap.warp.use(limit=MiB), wp.get_cuda_devices(), strict=True):
            self.addCleanup(wp.set_device_allocator, at, None)
            self.assertIs(wp.get_device_allocator(at), made)
            self.assertEqual(made.allocator.device, at.ordinal)

    def test_the_cpu_is_refused(self):
        with self.assertRaisesRegex(ValueError, "cpu"):
            stillmap.warp.Allocator("cpu")

    def test_contents(self):
        if device()["hostcuda"]:
            self.skipTest("copies call Warp's static CUDA runtime, which refuses hostcuda")
        made = wp.array(list(range(100)), dtype=wp.int32, device="cuda:0")
        self.assertEqual(made.numpy().tolist(), list(range(100)))


if __name__ == "__main__":
    unittest.main()
