"""stillmap.rmm through RMM's C++ callback: allocate and deallocate of the real resource.

RMM's DeviceBuffer needs a CUDA runtime, and RMM's is linked statically: it refuses hostcuda, so the cases that need
it are skipped there.
"""

import importlib.util
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import stillmap
from support import TestCase, device

HAVE = importlib.util.find_spec("rmm") is not None
if HAVE:
    import rmm
    import stillmap.rmm

MiB = 1 << 20


@unittest.skipUnless(HAVE, "rmm is not installed")
class Rmm(TestCase):
    def setUp(self):
        super().setUp()
        self.heap = stillmap.CachingAllocator(limit=64 * MiB)
        self.addCleanup(self.heap.close)
        self.resource = stillmap.rmm.resource(allocator=self.heap)

    def blocks(self):
        return self.heap.stats()["total"]["blocks"]

    def test_allocates_and_frees(self):
        ptr = self.resource.allocate(5000)
        self.assertTrue(self.heap.owns(ptr))
        self.assertEqual(self.blocks(), 1)
        self.resource.deallocate(ptr, 5000)
        self.assertEqual(self.blocks(), 0)

    def test_out_of_memory_is_bad_alloc(self):
        with self.assertRaisesRegex(MemoryError, "bad_alloc.*limit of the allocator"):
            self.resource.allocate(65 * MiB)
        self.resource.deallocate(self.resource.allocate(9), 9)

    def test_an_exception_of_a_callback(self):
        def ask(nbytes):
            raise KeyError("mine")
        resource = stillmap.rmm.resource(limit=4 * MiB, on_out_of_memory=ask)
        with self.assertRaisesRegex(Exception, "mine"):
            resource.allocate(9 * MiB)

    def test_after_close(self):
        ptr = self.resource.allocate(9)
        self.heap.close()
        self.resource.deallocate(ptr, 9)
        with self.assertRaisesRegex(Exception, "closed"):
            self.resource.allocate(9)

    def test_under_an_adaptor_of_rmm(self):
        counted = rmm.mr.StatisticsResourceAdaptor(self.resource)
        ptr = counted.allocate(5000)
        self.assertEqual(counted.allocation_counts.current_bytes, 5000)
        counted.deallocate(ptr, 5000)
        self.assertEqual(self.blocks(), 0)

    def test_arguments(self):
        with self.assertRaisesRegex(ValueError, "its device"):
            stillmap.rmm.resource(allocator=self.heap, limit=9)

    def test_buffers(self):
        if device()["hostcuda"]:
            self.skipTest("DeviceBuffer calls RMM's static CUDA runtime, which refuses hostcuda")
        rmm.mr.set_current_device_resource(self.resource)
        buffer = rmm.DeviceBuffer.to_device(bytes(range(200)))
        self.assertTrue(self.heap.owns(buffer.ptr))
        self.assertEqual(buffer.tobytes(), bytes(range(200)))

    def test_exit_with_live_memory(self):
        self.run_python("""
            import stillmap.rmm
            resource = stillmap.rmm.resource()
            kept = resource.allocate(1000)
        """)


if __name__ == "__main__":
    unittest.main()
