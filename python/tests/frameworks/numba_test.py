"""stillmap.numba in Numba. Each case is a program, because Numba keeps its manager. Kernels run with
`hostcuda run --kernels numba`."""

import importlib.util
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import stillmap
from support import TestCase

COMMON = """
import gc, os, sys, threading
import numpy as np
import numba.cuda as cuda
import stillmap, stillmap.numba as sn
def live(): return sn.allocator().stats()["total"]["live"]
def known(n, seed=1): return np.arange(n, dtype=np.int64) * seed
def manager(): return cuda.current_context().memory_manager
"""


@unittest.skipUnless(importlib.util.find_spec("numba_cuda"), "numba-cuda is not installed")
class Numba(TestCase):
    def program(self, code, **options):
        import textwrap
        return self.run_python(COMMON + textwrap.dedent(code), NUMBA_CUDA_MEMORY_MANAGER="stillmap.numba",
                               NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS="0", **options)

    def test_the_environment_variable_is_enough(self):
        self.program("""
            made = cuda.to_device(known(1000))
            assert sn.allocator().owns(int(made.gpu_data.handle))
            assert (made.copy_to_host() == known(1000)).all()
            assert manager().interface_version == 1
        """)

    def test_set_twice(self):
        self.program("""
            cuda.set_memory_manager(sn.MemoryManager)
            cuda.set_memory_manager(sn.MemoryManager)
            assert (cuda.to_device(known(9)).copy_to_host() == known(9)).all() and live() > 0
        """)

    def test_kernels_compute_on_its_memory(self):
        self.program("""
            @cuda.jit
            def add(a, b, out):
                i = cuda.grid(1)
                if i < out.size:
                    out[i] = a[i] + b[i]
            for n in range(1, 200_000, 17_001):
                a, b, out = cuda.to_device(known(n)), cuda.to_device(known(n, 7)), cuda.device_array(n, np.int64)
                assert all(sn.allocator().owns(int(x.gpu_data.handle)) for x in (a, b, out))
                add[-(-n // 256), 256](a, b, out)
                assert (out.copy_to_host() == known(n, 8)).all()
        """)

    def test_frees_come_in_batches_with_one_wait(self):
        self.program("""
            kept = cuda.to_device(known(9))
            waits, wait = [], manager()._synchronize
            manager()._synchronize = lambda: (waits.append(1), wait())
            with cuda.defer_cleanup():
                for n in range(50): cuda.to_device(known(100))
                assert len(waits) == 0 and sn.allocator().stats()["total"]["blocks"] >= 51
            manager().deallocations.clear()
            assert len(waits) == 1, waits
            assert sn.allocator().stats()["total"]["blocks"] == 1
            assert (kept.copy_to_host() == known(9)).all()
        """)

    def test_out_of_memory_is_numbas_own_and_frees_what_is_pending(self):
        self.program("""
            from numba.cuda.cudadrv.driver import CudaAPIError
            sn.configure(limit=64 << 20)
            first = cuda.device_array(40 << 20, dtype=np.uint8)
            try:
                cuda.device_array(40 << 20, dtype=np.uint8)
                raise SystemExit("no error")
            except CudaAPIError as error:
                assert error.code == 2 and "limit" in str(error), error
            with cuda.defer_cleanup():
                pass
            first = None
            second = cuda.device_array(40 << 20, dtype=np.uint8)
            try:
                sn.configure(limit=1)
                raise SystemExit("no error")
            except RuntimeError as error:
                assert "before" in str(error)
        """)

    def test_ipc_says_why_not(self):
        self.program("""
            made = cuda.to_device(known(9))
            try:
                made.get_ipc_handle()
                raise SystemExit("no error")
            except NotImplementedError as error:
                assert "IPC" in str(error)
        """)

    def test_memory_info_is_the_devices(self):
        self.program("""
            info = cuda.current_context().get_memory_info()
            assert info.total == stillmap.device_info()["total_bytes"] and 0 < info.free <= info.total
        """)

    def test_reset_frees_all_and_goes_on(self):
        self.program("""
            kept, view = cuda.to_device(known(9)), cuda.to_device(known(99))[3:]
            heap = sn.allocator()
            cuda.current_context().reset()
            assert heap.closed
            del kept, view; gc.collect()
            assert (cuda.to_device(known(7)).copy_to_host() == known(7)).all()
        """)

    def test_views_keep_the_memory(self):
        self.program("""
            whole = cuda.to_device(known(1000))
            part = whole[100:200]
            del whole; gc.collect(); manager().deallocations.clear()
            others = [cuda.to_device(known(1000, 7)) for _ in range(20)]
            assert (part.copy_to_host() == known(1000)[100:200]).all()
        """)

    def test_threads_with_streams(self):
        self.program("""
            cuda.current_context()  # Numba's own first use is not safe in two threads at once
            wrong = []
            def work(seed):
                try:
                    stream = cuda.stream()
                    for n in range(1, 60):
                        made = cuda.to_device(known(n * 37, seed), stream=stream)
                        back = made.copy_to_host(stream=stream)
                        stream.synchronize()
                        if not (back == known(n * 37, seed)).all(): wrong.append((seed, n))
                except BaseException as error:
                    wrong.append(error)
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
            for t in threads: t.start()
            for t in threads: t.join()
            assert not wrong, wrong
            gc.collect(); manager().deallocations.clear()
            assert live() == 0, sn.allocator().stats()
        """)

    def test_a_finalizer_in_a_thread_without_a_context(self):
        self.program("""
            kept = [cuda.to_device(known(9))]
            todo = manager()
            t = threading.Thread(target=lambda: (kept.clear(), gc.collect(), todo.deallocations.clear()))
            t.start(); t.join()
            assert live() == 0
        """)

    def test_each_device_has_its_own(self):
        if stillmap.device_count() < 2:
            self.skipTest("needs two devices")
        self.program("""
            with cuda.gpus[0]: first = cuda.to_device(known(5))
            with cuda.gpus[1]: second = cuda.to_device(known(6))
            for number, made in enumerate((first, second)):
                assert sn.allocator(number).owns(int(made.gpu_data.handle))
            del made, first, second
            for number in (0, 1):
                with cuda.gpus[number]: manager().deallocations.clear()
                assert sn.allocator(number).stats()["total"]["blocks"] == 0
        """)

    # Regression: an array of one device was not readable while another was the current one.
    def test_arrays_of_another_device(self):
        self.program("""
            arrays = []
            for number in (0, 1):
                with cuda.gpus[number]:
                    arrays.append(cuda.to_device(known(1000, number + 1)))
            for current in (0, 1):
                with cuda.gpus[current]:
                    for number, array in enumerate(arrays):
                        assert (array.copy_to_host() == known(1000, number + 1)).all()
                        array.copy_to_device(known(1000, number + 1))
                        arrays[1 - number].copy_to_device(array)
                        assert (arrays[1 - number].copy_to_host() == known(1000, number + 1)).all()
                        arrays[1 - number].copy_to_device(known(1000, 2 - number))
            for number in (0, 1):
                assert sn.allocator(number).owns(int(arrays[number].gpu_data.handle))
        """, HOSTCUDA="profile=multi:2,memory=2G")

    def test_a_closed_allocator(self):
        self.program("""
            kept = cuda.to_device(known(9))
            sn.allocator().close()
            del kept; gc.collect(); manager().deallocations.clear()
            assert (cuda.to_device(known(5)).copy_to_host() == known(5)).all(), "a new one is made"
        """)

    def test_an_interrupted_batch_is_freed_with_the_next(self):
        self.program("""
            manager()
            del_later = cuda.device_array(1 << 20, dtype=np.uint8)
            wait = type(manager())._synchronize
            def interrupted(self): raise KeyboardInterrupt
            type(manager())._synchronize = interrupted
            del del_later
            try: manager().deallocations.clear()
            except KeyboardInterrupt: pass
            else: raise AssertionError("not interrupted")
            type(manager())._synchronize = wait
            small = cuda.device_array(8, dtype=np.uint8)
            del small
            manager().deallocations.clear()
            assert live() == 0, live()
        """)

    def test_an_address_that_a_closed_allocator_gave_before(self):
        self.program("""
            old = cuda.device_array(8, dtype=np.uint8)
            sn.allocator().close()
            new = cuda.to_device(known(1000))
            del old
            manager().deallocations.clear()
            assert (new.copy_to_host() == known(1000)).all() and live() > 0
            del new
            manager().deallocations.clear()
            assert live() == 0, live()
        """)

    def test_exit_with_live_arrays(self):
        self.program("""
            kept = [cuda.to_device(known(n)) for n in range(1, 9)]
            class Node: pass
            node = Node(); node.me = node; node.array = cuda.to_device(known(9))
        """)

    def test_exit_of_a_forked_child(self):
        self.program("""
            kept = [cuda.to_device(known(9))]
            child = os.fork()
            if child == 0:
                kept.clear(); gc.collect()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert (kept[0].copy_to_host() == known(9)).all()
        """)


if __name__ == "__main__":
    unittest.main()
