"""stillmap.onnxruntime: its functions, called by their addresses as C code does.

ONNX Runtime itself is not run: a session on its CUDA provider needs cuDNN and kernels, which hostcuda has not.
"""

import ctypes
import gc
import pathlib
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import stillmap.onnxruntime
from support import TestCase

MiB = 1 << 20


def functions(memory):
    """As C code finds them: by the numbers in the options."""
    options = memory.provider_options()
    kinds = {"alloc": (ctypes.c_void_p, ctypes.c_size_t), "free": (None, ctypes.c_void_p), "empty_cache": (None,)}
    return [ctypes.CFUNCTYPE(*kind)(int(options["gpu_external_" + name])) for name, kind in kinds.items()]


class OnnxRuntime(TestCase):
    def setUp(self):
        super().setUp()
        self.memory = stillmap.onnxruntime.Allocator(limit=64 * MiB)
        self.addCleanup(self.memory.allocator.close)
        self.alloc, self.free, self.empty = functions(self.memory)

    def total(self):
        return self.memory.allocator.stats()["total"]

    def test_options_are_decimal_strings(self):
        options = self.memory.provider_options()
        self.assertEqual(options["device_id"], "0")
        self.assertTrue(all(value.isdecimal() for value in options.values()))
        self.assertEqual(len(set(options.values())), 4)

    def test_allocates_frees_and_empties(self):
        ptr = self.alloc(5 * MiB)
        self.assertTrue(self.memory.allocator.owns(ptr))
        self.free(ptr)
        self.free(None)
        self.assertEqual(self.total()["blocks"], 0)
        self.assertGreater(self.total()["committed"], 0)
        self.empty()
        self.assertEqual(self.total()["committed"], 0)

    def test_a_null_return_has_its_reason(self):
        self.assertIsNone(self.alloc(65 * MiB))
        self.assertIsInstance(self.memory.error, MemoryError)
        self.free(self.alloc(9))

    def test_an_exception_of_a_callback_does_not_reach_c(self):
        def ask(nbytes):
            raise KeyError("mine")
        memory = stillmap.onnxruntime.Allocator(limit=4 * MiB, on_out_of_memory=ask)
        self.assertIsNone(functions(memory)[0](9 * MiB))
        self.assertIsInstance(memory.error, KeyError)

    def test_after_close_and_after_the_object(self):
        ptr = self.alloc(9)
        self.memory.allocator.close()
        self.free(ptr)
        self.empty()
        self.assertIsNone(self.alloc(9))
        self.assertIn("closed", str(self.memory.error))
        late = functions(stillmap.onnxruntime.Allocator())
        gc.collect()
        late[1](late[0](9))

    def test_threads(self):
        wrong = []

        def work():
            for size in range(1, 2000):
                ptr = self.alloc(size)
                if not ptr:
                    wrong.append(size)
                self.free(ptr)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((wrong, self.total()["blocks"]), ([], 0))

    def test_exit_with_live_memory(self):
        self.run_python("""
            import ctypes, stillmap.onnxruntime
            memory = stillmap.onnxruntime.Allocator()
            alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(
                int(memory.provider_options()["gpu_external_alloc"]))
            kept = alloc(1000)
            assert kept
        """)


if __name__ == "__main__":
    unittest.main()
