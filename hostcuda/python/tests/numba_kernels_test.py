"""`hostcuda run --kernels numba`. The translation of Numba's IR by itself, and, under that command where numba-cuda is
installed, kernels whose results are compared."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

INSIDE = pathlib.Path(__file__).resolve().parents[1] / "stillmap_hostcuda/inside"
RUNS = "HOSTCUDA_NUMBA" in os.environ and importlib.util.find_spec("numba_cuda") is not None
os.environ.update(NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS="0", NUMBA_CUDA_WARN_ON_IMPLICIT_COPY="0")  # on stderr
if not RUNS:
    sys.path.insert(0, str(INSIDE))
import hostcuda_numba  # noqa: E402
import hostcuda_numba_ir  # noqa: E402


class Translation(unittest.TestCase):
    def translate(self, before, after):
        self.assertEqual(hostcuda_numba_ir.for_the_host(before).strip(), after)

    def test_pointers_have_no_types(self):
        for before, after in (
                ("%x = load i32, i32* %p", "%x = load i32, ptr %p"),
                ("%x = load i8**, i8*** %p", "%x = load ptr, ptr %p"),
                ("store {i8*, [2 x i64]} %v, {i8*, [2 x i64]}* %p", "store {ptr, [2 x i64]} %v, ptr %p"),
                ('%q = bitcast %"a b"* %p to <4 x float>*', "%q = bitcast ptr %p to ptr"),
                ("call void %f(i32 (i8*, ...)* %g)", "call void %f(ptr %g)"),
                ("%m = mul i64 %a, %b", "%m = mul i64 %a, %b"),
                ('@"a*b" = global [1 x i8*] [i8* bitcast (void ()* @"f" to i8*)]',
                 '@"a*b" = global [1 x ptr] [ptr bitcast (ptr @"f" to ptr)]')):
            with self.subTest(before):
                self.translate(before, after)

    def test_address_spaces_are_one(self):
        self.translate('%g = addrspacecast [32 x float] addrspace(3)* @"s" to i8*', '%g = bitcast ptr @"s" to ptr')
        self.translate('@"s" = addrspace(3) global [32 x float] undef, align 4', '@"s" = global [32 x float] undef, align 4')

    def test_arrays_of_dynamic_shared_memory_are_one(self):
        self.translate('%g = bitcast [0 x i8] addrspace(3)* @"s" to i8*\n%h = bitcast [0 x i8] addrspace(3)* @"t" to i8*\n'
                       '@"s" = external addrspace(3) global [0 x double], align 16\n'
                       '@"t" = external addrspace(3) global [0 x float], align 4',
                       '%g = bitcast ptr @"hostcuda.dynamic_shared" to ptr\n%h = bitcast ptr @"hostcuda.dynamic_shared" to ptr\n'
                       '\n\n@"hostcuda.dynamic_shared" = external global [232448 x i8], align 128')

    def test_strings_stay(self):
        self.translate('@"s" = constant [40 x i8] c"addrspace(3) i32* addrspacecast"',
                       '@"s" = constant [40 x i8] c"addrspace(3) i32* addrspacecast"')

    def test_what_is_for_debuggers_and_gpus_is_left_out(self):
        self.translate('target triple = "nvptx64-nvidia-cuda"\n!1 = !{ i32 2 }\n%x = load i64, i64* %p, !range !1, !dbg !2',
                       "%x = load i64, ptr %p")
        self.translate('define void @"f"() !dbg !9', 'define void @"f"()')

    def test_ptx_is_refused(self):
        with self.assertRaisesRegex(hostcuda_numba_ir.Unsupported, r"PTX: activemask\.b32"):
            hostcuda_numba_ir.for_the_host('%m = call i32 asm  "activemask.b32 $0;", "=r"()')
        self.translate('%n = call i32 asm sideeffect "mov.u32 $0, %dynamic_smem_size;", "=r"()',
                       '%n = call i32 @"hostcuda.dynamic_smem_size"()\ndeclare i32 @"hostcuda.dynamic_smem_size"()')


class Registration(unittest.TestCase):
    def test_a_second_thread_waits_until_the_kernel_is_registered(self):
        begun, done = threading.Event(), []
        registrar = hostcuda_numba.Registrar.__new__(hostcuda_numba.Registrar)
        registrar.lock, registrar.known = threading.Lock(), {}

        def compile_slowly(kernel, function):
            begun.set()
            time.sleep(0.2)
            done.append(function)
        registrar.compile = compile_slowly
        kernel = mock.Mock()
        first = threading.Thread(target=registrar.register, args=(kernel,))
        first.start()
        begun.wait()
        registrar.register(kernel)
        self.assertEqual(done, [kernel._codelibrary.get_cufunc()])
        first.join()


def cuda_error():
    """What cuda.core raises."""
    from cuda.core._utils.cuda_utils import CUDAError
    return CUDAError


@unittest.skipUnless(RUNS, "needs `hostcuda run --kernels numba` and numba-cuda")
class Kernels(unittest.TestCase):
    def setUp(self):
        import numpy
        from numba import cuda
        self.np, self.cuda = numpy, cuda

    def test_each_thread_of_a_grid(self):
        cuda, np = self.cuda, self.np

        @cuda.jit
        def kernel(out):
            x, y, z = cuda.grid(3)
            if x < out.shape[0] and y < out.shape[1] and z < out.shape[2]:
                out[x, y, z] += 10000 * x + 100 * y + z
        out = cuda.to_device(np.zeros((9, 7, 5), np.int64))
        kernel[(3, 2, 2), (4, 4, 3)](out)
        self.assertTrue((out.copy_to_host() == np.fromfunction(lambda x, y, z: 10000 * x + 100 * y + z, out.shape)).all())

    def test_a_reduction_in_shared_memory(self):
        cuda, np = self.cuda, self.np

        @cuda.jit
        def sums(values, out):
            part = cuda.shared.array(256, np.float64)
            at, lane = cuda.grid(1), cuda.threadIdx.x
            part[lane] = values[at] if at < values.size else 0
            step = 128
            while step:
                cuda.syncthreads()
                if lane < step:
                    part[lane] += part[lane + step]
                step //= 2
            if lane == 0:
                out[cuda.blockIdx.x] = part[0]
        values = np.random.default_rng(1).random(1000)
        out = np.zeros(4)
        sums[4, 256](values, out)
        np.testing.assert_allclose(out, [values[i:i + 256].sum() for i in range(0, 1000, 256)])

    def test_dynamic_shared_memory(self):
        cuda, np = self.cuda, self.np

        @cuda.jit
        def reverse(values):
            part = cuda.shared.array(0, np.int32)
            part[cuda.threadIdx.x] = values[cuda.threadIdx.x]
            cuda.syncthreads()
            values[cuda.threadIdx.x] = part[cuda.blockDim.x - 1 - cuda.threadIdx.x] + part.size
        values = np.arange(100, dtype=np.int32)
        reverse[1, 100, 0, 400](values)
        self.assertTrue((values == np.arange(99, -1, -1) + 100).all())

    def test_arrays_of_dynamic_shared_memory_overlap(self):
        cuda, np = self.cuda, self.np

        @cuda.jit(device=True)
        def bits(out):
            out[0] = cuda.shared.array(0, np.int32)[0]

        @cuda.jit
        def kernel(out):
            cuda.shared.array(0, np.float32)[0] = 1.0
            cuda.syncthreads()
            bits(out)
        out = np.zeros(1, np.int32)
        kernel[1, 1, 0, 64](out)
        self.assertEqual(out[0], np.float32(1).view(np.int32))

    def test_too_much_shared_memory_is_refused(self):
        cuda, np = self.cuda, self.np
        from numba.cuda.cudadrv.driver import CudaAPIError

        @cuda.jit
        def kernel(out):
            own = cuda.shared.array(10000, np.float32)
            own[int(out[0])] = 1
            cuda.syncthreads()
            out[0] = own[int(out[1])] + cuda.shared.array(0, np.float32).size
        out = np.zeros(2)
        kernel[1, 1, 0, 9152](out)
        self.assertEqual(out[0], 1 + 9152 / 4)
        for too_much in (9153, 1 << 24):
            with self.assertRaises((CudaAPIError, RuntimeError, cuda_error())):
                kernel[1, 1, 0, too_much](out)

    def test_large_local_arrays_compile_at_once(self):
        cuda, np = self.cuda, self.np

        @cuda.jit
        def kernel(out):
            own = cuda.local.array(60000, np.int32)
            for i in range(60000):
                own[i] = i
            out[cuda.grid(1)] = own[cuda.grid(1)]
        out = np.zeros(64)
        kernel[2, 32](out)  # took minutes
        self.assertTrue((out == np.arange(64)).all())

    def test_numbers_out_of_range(self):
        cuda, np = self.cuda, self.np

        @cuda.jit
        def kernel(values, amounts, signed, unsigned, small, shifted):
            i = cuda.grid(1)
            signed[i], unsigned[i], small[i] = np.int32(values[i]), np.uint64(values[i]), np.uint8(values[i])
            shifted[i, 0], shifted[i, 1] = np.int64(-5) << amounts[i], np.int64(-5) >> amounts[i]
        values, amounts = np.array([1e10, -1e10, -5.5, np.nan, 77.9]), np.array([0, 1, 63, 64, 200])
        signed, unsigned, small = np.zeros(5, np.int32), np.zeros(5, np.uint64), np.zeros(5, np.uint8)
        shifted = np.zeros((5, 2), np.int64)
        kernel[1, 5](values, amounts, signed, unsigned, small, shifted)
        self.assertEqual(list(signed), [2**31 - 1, -2**31, -5, 0, 77])
        self.assertEqual(list(unsigned), [10**10, 0, 0, 0, 77])
        self.assertEqual(list(small), [255, 0, 0, 0, 77])  # the low byte of 65,535
        self.assertEqual([list(row) for row in shifted], [[-5, -5], [-10, -3], [-2**63, -1], [0, -1], [0, -1]])

    def test_kernels_of_the_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "cached.py"
            source.write_text("""if True:
            import sys
            import numpy as np
            from numba import cuda
            def make(number):
                @cuda.jit(cache=True)
                def kernel(out):
                    out[0] = number
                return kernel
            for number in map(int, sys.argv[1:]):
                out = np.zeros(1)
                make(number)[1, 1](out)
                assert out[0] == number, (number, out[0])
            """)
            # In the second process 4 has the name that 1 had in the first, and 1 comes from the cache.
            for numbers in ("1 2 3", "4 3 2 1", "5 4 1"):
                done = subprocess.run([sys.executable, "-W", "ignore", source, *numbers.split()], capture_output=True,
                                      text=True, timeout=300, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""), numbers)

    def test_a_kernel_without_stacks_fails(self):
        done = self.program("""if True:
            import resource
            @cuda.jit
            def kernel(out):
                cuda.syncthreads()
                out[cuda.grid(1)] = 1
            out = cuda.to_device(np.zeros(4096))
            kernel[4, 32](out)
            cuda.synchronize()
            used = int(open("/proc/self/statm").read().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
            kernel[4, 1024](out)
            try:
                cuda.synchronize()
            except cuda.cudadrv.driver.CudaAPIError as error:
                print(error)
        """)
        self.assertIn("CUDA_ERROR_LAUNCH_FAILED", done.stdout, done.stderr)
        self.assertIn("no memory for the stacks of 1024 threads", done.stderr)

    def test_atomic_operations(self):
        cuda, np = self.cuda, self.np

        @cuda.jit
        def count(keys, counts, extremes, swaps):
            at = cuda.grid(1)
            cuda.atomic.add(counts, keys[at] % 10, 1.5)
            cuda.atomic.max(extremes, 0, float(keys[at]))
            cuda.atomic.min(extremes, 1, float(keys[at]))
            cuda.atomic.inc(swaps, 0, np.uint32(99))
            cuda.atomic.cas(swaps, 1, np.uint32(0), np.uint32(at + 1))
        keys = np.random.default_rng(2).integers(0, 1000, 1024)
        counts, extremes, swaps = np.zeros(10, np.float32), np.array([-1.0, 1e9]), np.zeros(2, np.uint32)
        count[8, 128](keys, counts, extremes, swaps)
        self.assertTrue((counts == 1.5 * np.bincount(keys % 10)).all())
        self.assertEqual(list(extremes), [keys.max(), keys.min()])
        self.assertEqual(list(swaps), [1024 % 100, 1])

    def test_functions_of_libdevice(self):
        import math
        cuda, np = self.cuda, self.np

        @cuda.jit(device=True)
        def norm(x, y):
            return math.hypot(x, y)

        @cuda.jit
        def kernel(values, out):
            i = cuda.grid(1)
            out[i, 0] = math.sin(values[i])
            out[i, 1] = math.exp(values[i]) ** 0.5
            out[i, 2] = norm(values[i], 2.0)
            out[i, 3] = math.isnan(values[i])
            out[i, 4] = cuda.popc(np.uint32(i))
        values = np.append(np.linspace(-3, 3, 31), np.nan)
        out = np.zeros((32, 5))
        kernel[1, 32](values, out)
        expected = np.stack([np.sin(values), np.exp(values) ** 0.5, np.hypot(values, 2), np.isnan(values),
                             [bin(i).count("1") for i in range(32)]], axis=1)
        np.testing.assert_allclose(out, expected, rtol=1e-12)

    def test_arguments_of_all_kinds(self):
        cuda, np = self.cuda, self.np
        record = np.dtype([("a", np.int16), ("b", np.float64)], align=True)

        @cuda.jit
        def kernel(strided, backwards, empty, records, number, flag, pair, out):
            i = cuda.grid(1)
            out[i] = strided[i] + backwards[i] + empty.size + records[i].a + number + pair[1]
            records[i].b = flag
        base = cuda.to_device(np.arange(64.0))
        records = np.zeros(8, record)
        records["a"] = np.arange(8)
        out = np.zeros(8, np.complex128)
        kernel[1, 8](base[::8], base[7::-1], cuda.device_array(0), records, 2 + 1j, True, (1, 100), out)
        self.assertTrue((out == np.arange(8) * 8 + np.arange(7, -1, -1) + np.arange(8) + 102 + 1j).all())
        self.assertTrue((records["b"] == 1).all())

    def test_work_of_streams_is_in_order(self):
        cuda, np = self.cuda, self.np

        @cuda.jit
        def increment(values):
            values[cuda.grid(1)] += 1
        streams = [cuda.stream() for _ in range(4)]
        arrays = [cuda.to_device(np.zeros(256), stream) for stream in streams]
        for _ in range(50):
            for array, stream in zip(arrays, streams):
                increment[2, 128, stream](array)
        cuda.synchronize()
        for array in arrays:
            self.assertTrue((array.copy_to_host() == 50).all())

    def test_ufuncs(self):
        from numba import vectorize
        cuda, np = self.cuda, self.np

        @vectorize(["float64(float64, float64)"], target="cuda")
        def mix(a, b):
            return a * 2 + b
        a = np.arange(1000.0)
        self.assertTrue((mix(a, a + 5) == 3 * a + 5).all())
        self.assertTrue(cuda.is_available())

    def test_votes_at_a_barrier(self):
        cuda, np = self.cuda, self.np

        @cuda.jit
        def kernel(values, out):
            i = cuda.threadIdx.x
            a, b, c = cuda.syncthreads_count(values[i]), cuda.syncthreads_and(values[i]), cuda.syncthreads_or(values[i])
            out[i] = 100 * a + 10 * b + c
        for values, expected in (([0] * 32, 0), ([1] * 32, 3211), ([0, 5] * 16, 1601)):
            out = np.zeros(32, np.int64)
            kernel[1, 32](np.array(values, np.int32), out)
            self.assertEqual(set(out), {expected})

    def test_printing(self):
        done = self.program("""if True:
            @cuda.jit
            def kernel(x):
                print("thread", cuda.threadIdx.x, "of", cuda.threadIdx, x, x > 2, -cuda.blockIdx.x)
            kernel[1, 2](2.5)
            cuda.synchronize()
        """)
        self.assertEqual(done.stdout, "thread 0 of (0, 0, 0) 2.500000 True 0\nthread 1 of (1, 0, 0) 2.500000 True 0\n",
                         done.stderr)

    def test_exceptions_of_a_kernel(self):
        cuda, np = self.cuda, self.np

        @cuda.jit(debug=True, opt=False)
        def kernel(values, last):
            if cuda.grid(1) > last:
                raise ValueError("too far")
            values[cuda.grid(1)] = 1
        values = np.zeros(64)
        kernel[2, 32](values, 64)
        self.assertTrue((values == 1).all())
        with self.assertRaisesRegex(ValueError, r"tid=\[0, 0, 8\] ctaid=\[0, 0, 1\]: too far"):
            kernel[2, 32](values, 39)

    def test_resources_of_a_kernel(self):
        cuda, np = self.cuda, self.np
        table = np.arange(10.0)

        @cuda.jit("void(float64[::1])")
        def kernel(out):
            part = cuda.shared.array(100, np.int32)
            own = cuda.local.array(1000, np.float64)
            constant = cuda.const.array_like(table)
            i = cuda.grid(1)
            for j in range(1000):
                own[j] = i * j
            part[i] = i
            cuda.syncthreads()
            out[i] = part[99 - i] + own[i] + constant[i % 10]
        out = np.zeros(100)
        kernel[1, 100](out)
        i = np.arange(100)
        self.assertTrue((out == 99 - i + i * i + i % 10).all())
        compiled, = kernel.overloads.values()
        self.assertEqual((compiled.shared_mem_per_block, compiled.const_mem_size), (400, 80))
        self.assertGreaterEqual(compiled.local_mem_per_thread, 8000)
        self.assertIn(compiled.regs_per_thread, range(1, 256))

    def program(self, code):
        head = "import numpy as np\nfrom numba import cuda\n"
        return subprocess.run([sys.executable, "-W", "ignore", "-"], input=head + code, capture_output=True, text=True,
                              timeout=300, check=False)

    def test_a_kernel_that_cannot_run_says_why(self):
        done = self.program("""if True:
            @cuda.jit
            def kernel(out):
                out[0] = cuda.shfl_sync(0xffffffff, 7, 0)
            out = np.zeros(1)
            kernel[1, 32](out)
            assert out[0] == 0
        """)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"hostcuda: the kernel '\S+kernel\S+' of Numba does not run: it calls llvm\.nvvm\.shfl")

    def test_an_array_that_is_not_mapped_breaks_the_context(self):
        done = self.program("""if True:
            from numba.cuda.cudadrv import driver
            @cuda.jit
            def kernel(out):
                out[cuda.grid(1)] = 1
            ok = cuda.device_array(64)
            memory = driver.MemoryPointer(context=cuda.current_context(), pointer=ok.gpu_data.device_pointer_value + (1 << 40)
                if hasattr(ok.gpu_data, "device_pointer_value") else int(ok.gpu_data.handle) + (1 << 40), size=512)
            bad = cuda.devicearray.DeviceNDArray((64,), (8,), np.float64, gpu_data=memory)
            kernel[1, 64](bad)
            try:
                cuda.synchronize()
            except driver.CudaAPIError as error:
                print(error)
        """)
        self.assertIn("CUDA_ERROR_ILLEGAL_ADDRESS", done.stdout, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
