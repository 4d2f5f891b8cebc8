"""stillmap.cupy: the objects that it gives CuPy. CuPy itself does not start on hostcuda (its static CUDA runtime
refuses it), so there CuPy's current stream is a stand-in, and no array is made."""

import importlib.util
import pathlib
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import stillmap
from support import TestCase, device

HAVE = importlib.util.find_spec("cupy") is not None
if HAVE:
    import cupy
    import stillmap.cupy

MiB = 1 << 20


@unittest.skipUnless(HAVE, "cupy is not installed")
class Cupy(TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(lambda: stillmap.cupy.heap().close())

    def on_stream(self, handle):
        stream = types.SimpleNamespace(ptr=handle)
        return mock.patch.object(cupy.cuda, "get_current_stream", lambda: stream)

    def test_memory_is_for_the_current_stream(self):
        from support import driver
        stream = driver().stream()
        self.addCleanup(driver().destroy, stream)
        with self.on_stream(stream):
            ptr = stillmap.cupy.malloc(5000, 0)
        arenas = [a for a in stillmap.cupy.heap().stats()["arenas"] if a["live"]]
        self.assertEqual([a["stream"] for a in arenas], [stream])
        stillmap.cupy.free(ptr, 0)
        self.assertEqual(stillmap.cupy.heap().stats()["total"]["blocks"], 0)

    def test_options_and_errors(self):
        stillmap.cupy.heap().close()
        stillmap.cupy.configure(limit=8 * MiB)
        self.addCleanup(stillmap.cupy.configure, limit=None)
        self.addCleanup(lambda: stillmap.cupy.heap().close())
        with self.on_stream(0):
            with self.assertRaisesRegex(MemoryError, "limit"):
                stillmap.cupy.malloc(9 * MiB, 0)
            stillmap.cupy.free(stillmap.cupy.malloc(9, 0), 0)
        with self.assertRaisesRegex(RuntimeError, "before the first"):
            stillmap.cupy.configure(limit=1)

    def test_freed_after_close_and_after_a_new_one(self):
        with self.on_stream(0):
            old = stillmap.cupy.malloc(9, 0)
            stillmap.cupy.heap().close()
            stillmap.cupy.malloc(9 * MiB, 0)
        stillmap.cupy.free(old, 0)
        self.assertEqual(stillmap.cupy.heap().stats()["total"]["blocks"], 1)

    def test_the_objects_are_cupys(self):
        self.assertIsInstance(stillmap.cupy.allocator(), cupy.cuda.PythonFunctionAllocator)
        heap = stillmap.CachingAllocator()
        self.assertIsInstance(stillmap.cupy.c_allocator(heap), cupy.cuda.CFunctionAllocator)

    def test_use_sets_it(self):
        before = cupy.cuda.get_allocator()
        self.addCleanup(cupy.cuda.set_allocator, before)
        stillmap.cupy.use()
        self.assertIsInstance(cupy.cuda.get_allocator().__self__, cupy.cuda.PythonFunctionAllocator)

    def test_arrays(self):
        if device()["hostcuda"]:
            self.skipTest("CuPy's static CUDA runtime refuses hostcuda")
        self.addCleanup(cupy.cuda.set_allocator, cupy.cuda.get_allocator())
        stillmap.cupy.use()
        made = cupy.arange(1000)
        self.assertTrue(stillmap.cupy.heap().owns(made.data.ptr))
        self.assertEqual(int(made.sum()), 499500)


if __name__ == "__main__":
    unittest.main()
