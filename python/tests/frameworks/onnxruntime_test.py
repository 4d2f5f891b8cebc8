"""stillmap.onnxruntime: its functions, called by their addresses as C code does, and in ONNX Runtime's sessions
on hostcuda. Kernels are skipped there, so only sessions of copies are asked for their results.
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

try:
    import numpy
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    onnxruntime.set_default_logger_severity(4)
except ImportError:
    onnxruntime = None

MiB = 1 << 20
CUDA = "CUDAExecutionProvider"


def functions(memory):
    """As C code finds them: by the numbers in the options."""
    options = memory.provider_options()
    kinds = {"alloc": (ctypes.c_void_p, ctypes.c_size_t), "free": (None, ctypes.c_void_p), "empty_cache": (None,)}
    return [ctypes.CFUNCTYPE(*kind)(int(options["gpu_external_" + name])) for name, kind in kinds.items()]


class Functions(TestCase):
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
        self.assertEqual(options, self.memory.provider_options())

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
        self.assertIn("limit", stillmap.last_error())
        self.free(self.alloc(9))

    def test_each_allocator_has_functions_of_its_own(self):
        other = stillmap.onnxruntime.Allocator(tag="other")
        self.addCleanup(other.allocator.close)
        ptr = functions(other)[0](MiB)
        self.assertTrue(other.allocator.owns(ptr))
        self.assertFalse(self.memory.allocator.owns(ptr))

    def test_after_close_and_after_the_object(self):
        ptr = self.alloc(9)
        self.memory.allocator.close()
        self.free(ptr)
        self.empty()
        self.assertIsNone(self.alloc(9))
        self.assertIn("closed", stillmap.last_error())
        late = functions(stillmap.onnxruntime.Allocator())
        gc.collect()
        late[1](late[0](9))

    def test_there_are_functions_for_64_allocators(self):
        self.run_python("""
            import stillmap, stillmap.onnxruntime
            made = set()
            for number in range(64):
                memory = stillmap.onnxruntime.Allocator()
                made.update(memory.provider_options().values())
                memory.allocator.close()
            assert len(made) == 64 * 3 + 1, len(made)
            try:
                stillmap.onnxruntime.Allocator().provider_options()
            except stillmap.NotSupportedError as error:
                assert "64" in str(error), error
            else:
                assert False, "a 65th"
        """)

    def test_a_child_gets_null_and_frees_nothing(self):
        self.run_python("""
            import ctypes, os, stillmap, stillmap.onnxruntime
            memory = stillmap.onnxruntime.Allocator()
            alloc, free, empty = (int(v) for k, v in memory.provider_options().items() if k != "device_id")
            alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(alloc)
            free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(free)
            kept = alloc(1000)
            child = os.fork()
            if child == 0:
                free(kept)
                ctypes.CFUNCTYPE(None)(empty)()
                os._exit(0 if alloc(1000) is None and "fork" in stillmap.last_error() else 1)
            assert os.waitpid(child, 0)[1] == 0
            free(kept)
            assert memory.allocator.stats()["total"]["blocks"] == 0
        """)

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


def save(test, name, nodes, dims, weights=()):
    """A model from x to y; the first dimension is free."""
    graph = helper.make_graph(
        nodes, name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *dims[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", *dims[1]])],
        [onnx.numpy_helper.from_array(numpy.ones(shape, numpy.float32), name) for name, shape in weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, test.path(name))
    return test.path(name)


def perceptron(test):
    return save(test, "perceptron.onnx", [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Add", ["a", "b1"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w2"], ["y"]),
    ], ([512], [256]), [("w1", (512, 1024)), ("b1", (1024,)), ("w2", (1024, 256))])


def convolutions(test):
    return save(test, "convolutions.onnx", [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "one", "zero", "zero", "one"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["c", "w2"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["y"]),
    ], ([3, 64, 64], [32, 1, 1]),
        [("w1", (16, 3, 3, 3)), ("one", (16,)), ("zero", (16,)), ("w2", (32, 16, 1, 1))])


def copies(test, count=24):
    """Transpositions that move no element: ONNX Runtime copies from device to device."""
    names = ["x", *(f"t{i}" for i in range(1, count)), "y"]
    return save(test, "copies.onnx", [helper.make_node("Transpose", [a], [b], perm=[0, 2, 1])
                                      for a, b in zip(names, names[1:])], (["a", "b"], ["a", "b"]))


@unittest.skipUnless(onnxruntime, "needs onnxruntime-gpu, onnx and numpy")
class Sessions(TestCase):
    def session(self, path, memory):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_mem_pattern = options.enable_mem_reuse = False
        made = onnxruntime.InferenceSession(path, options, providers=[(CUDA, memory.provider_options())])
        self.assertIn(CUDA, made.get_providers())
        return made

    def memory(self, **options):
        made = stillmap.onnxruntime.Allocator(**options)
        self.addCleanup(made.allocator.close)
        return made

    def check_model(self, path, shape):
        memory = self.memory()
        session = self.session(path, memory)
        weights = memory.allocator.stats()["total"]["blocks"]
        self.assertGreater(weights, 0)
        for n in (1, 7, 64, 500, 3):
            session.run(None, {"x": numpy.zeros((n, *shape), numpy.float32)})
            self.assertEqual(memory.allocator.stats()["total"]["blocks"], weights)
        grown = memory.allocator.stats()["pages_created"]
        for n in (500, 64, 1):
            session.run(None, {"x": numpy.zeros((n, *shape), numpy.float32)})
        self.assertEqual(memory.allocator.stats()["pages_created"], grown)
        del session
        gc.collect()
        self.assertEqual(memory.allocator.stats()["total"]["blocks"], 0)
        memory.allocator.empty_cache()
        self.assertEqual(memory.allocator.stats()["total"]["committed"], 0)

    def test_products(self):
        self.check_model(perceptron(self), (512,))

    def test_convolutions(self):
        self.check_model(convolutions(self), (3, 64, 64))

    def test_runs_of_several_threads_on_two_sessions_share_one_allocator(self):
        memory, path = self.memory(), copies(self)
        sessions = [self.session(path, memory) for _ in range(2)]
        wrong = []

        def work(number):
            sizes = numpy.random.default_rng(number)
            for i in range(25):
                x = numpy.full((int(sizes.integers(1, 64)), 1024, 1), number * 100 + i, numpy.float32)
                y = sessions[i % 2].run(None, {"x": x})[0]
                if not numpy.array_equal(x, y):
                    wrong.append((number, i))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertGreater(memory.allocator.stats()["total"]["allocations"], 1000)

    def test_out_of_memory_is_an_error_and_the_session_goes_on(self):
        memory = self.memory(limit=16 * MiB)
        session = self.session(perceptron(self), memory)
        with self.assertRaises(Exception) as raised:
            session.run(None, {"x": numpy.zeros((20000, 512), numpy.float32)})
        self.assertIn(onnxruntime.__name__, type(raised.exception).__module__)
        self.assertIn("limit", stillmap.last_error())
        session.run(None, {"x": numpy.zeros((10, 512), numpy.float32)})

    def test_a_stream_of_the_users_is_refused(self):
        options = {**self.memory().provider_options(), "user_compute_stream": "4096"}
        with self.assertRaises(Exception) as raised:
            onnxruntime.InferenceSession(perceptron(self), providers=[(CUDA, options)], enable_fallback=0)
        self.assertIn("has_user_compute_stream", f"{raised.exception} {raised.exception.__cause__}")

    def test_exit_with_a_live_session(self):
        path = perceptron(self)
        self.run_python(f"""
            import numpy, onnxruntime, stillmap.onnxruntime
            onnxruntime.set_default_logger_severity(4)
            memory = stillmap.onnxruntime.Allocator()
            session = onnxruntime.InferenceSession({path!r}, providers=[("{CUDA}", memory.provider_options())])
            session.run(None, {{"x": numpy.zeros((3, 512), numpy.float32)}})
            del memory
        """)


if __name__ == "__main__":
    unittest.main()
