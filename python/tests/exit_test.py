"""The end of the interpreter, and of forked children, with objects alive in every place."""

import unittest

from support import TestCase, needs_vmm

MAKE = """
import atexit, gc, os, sys, threading, time
import stillmap
stillmap._native._set_leak_warnings(True)
def make():
    heap = stillmap.CachingAllocator(tag="heap", limit=1 << 30, on_out_of_memory=lambda n: False)
    stream = None
    heap.allocate(5 << 20)
    buffer = stillmap.GrowableBuffer(4 << 20, tag="buffer")
    vector = stillmap.DeviceVector("f4", [1, 2, 3])
    vector.append(4)
    return [heap, buffer, vector, buffer.alias(0, 2 << 20) if buffer.in_place else None, heap.memory_map()]
"""


class Exit(TestCase):
    def end(self, code, **options):
        import textwrap
        return self.run_python(MAKE + textwrap.dedent(code), **options)

    def test_globals(self):
        self.end("things = make()")

    def test_closed_in_any_order(self):
        self.end("""
            for order in range(4):
                things = make()
                del things[order]
                things.reverse()
                del things[0]
        """)

    def test_a_circle(self):
        self.end("""
            class Node: pass
            node = Node(); node.self = node; node.things = make()
            del node
        """)

    def test_a_circle_through_a_callback(self):
        self.end("""
            def ask(nbytes): return heap is None
            heap = stillmap.CachingAllocator(on_out_of_memory=ask)
            heap.allocate(1)
        """)

    def test_in_other_modules(self):
        self.end("sys.keep = make(); import builtins; builtins.keep = make(); stillmap.keep = make()")

    def test_atexit(self):
        self.end("""
            things = make()
            atexit.register(lambda: (things[0].allocate(1 << 20), things[1].resize(8 << 20), stillmap.stats()))
        """)

    def test_destructors_of_the_last_moment(self):
        self.end("""
            class Late:
                def __init__(self): self.heap = make()[0]; self.block = self.heap.allocate(100)
                def __del__(self): self.heap.free(self.block); self.heap.close()
            late = Late(); sys.late = Late()
        """)

    def test_exports(self):
        self.end("capsule = make()[1].__dlpack__(); sys.capsule = make()[2].__dlpack__()")

    def test_references_that_are_never_dropped(self):
        # As those of a C library. nanobind's report is off in programs: nothing is printed.
        self.run_python("""
            import ctypes, stillmap
            heap = stillmap.CachingAllocator(on_out_of_memory=lambda n: True)
            heap.allocate(1)
            capsule = stillmap.GrowableBuffer(4096).__dlpack__()
            for thing in (heap, capsule):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
        """)

    def test_c_functions_after_the_interpreters_end(self):
        # A library frees its last block, and asks for one more, when Python is gone.
        self.run_python("""
            import ctypes, stillmap
            heap = stillmap.CachingAllocator(limit=4 << 20, on_out_of_memory=lambda n: True)
            kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
            block = kind(heap.c_malloc)(heap.c_param, 1 << 20, 0)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(heap))
            param = ctypes.c_void_p(heap.c_param)
            # on_exit's function gets (status, argument): as c_malloc sees it, (no allocator, n bytes).
            libc = ctypes.CDLL(None)
            libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            for function in (heap.c_malloc, heap.c_free):
                libc.on_exit(function, 8 << 20)
            # A thread-specific destructor gets one argument; __cxa_atexit's gets one, too: the parameter.
            libc.__cxa_atexit.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
            for function in (heap.c_malloc, heap.c_free):
                libc.__cxa_atexit(function, param, None)
        """)

    def test_daemon_threads(self):
        for body in ("heap.free(heap.allocate(1000))", "buffer.copy_to_host(10)", "stillmap.stats()",
                     "stillmap.CachingAllocator(limit=1, on_out_of_memory=bool)"):
            for _ in range(3):
                self.run_python("""
                    import threading, time, stillmap
                    heap, buffer = stillmap.CachingAllocator(), stillmap.GrowableBuffer(1 << 20)
                    def forever():
                        while True:
                            %s
                    for _ in range(4):
                        threading.Thread(target=forever, daemon=True).start()
                    time.sleep(0.05)
                """ % body)

    def test_a_daemon_thread_that_waits_for_the_device(self):
        self.run_python("""
            import ctypes, threading, time, stillmap
            buffer = stillmap.GrowableBuffer(1 << 20)
            driver, context = ctypes.CDLL(stillmap.device_info()["driver_path"]), ctypes.c_void_p()
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
            driver.cuCtxSetCurrent(context)
            driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
            usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
            driver.cuLaunchHostFunc(None, usleep, 200000)
            threading.Thread(target=buffer.copy_to_host, args=[10], daemon=True).start()
            time.sleep(0.05)
        """)

    @needs_vmm
    def test_suspended(self):
        self.end("things = make(); stillmap.suspend('heap'); stillmap.suspend('buffer') if len(things) < 0 else None")

    def test_exceptions_end_the_program(self):
        self.run_python("import stillmap; b = stillmap.GrowableBuffer(4096); import os; os._exit(3)", expect=3)


class Fork(TestCase):
    def fork(self, parent, child, **options):
        import textwrap
        return self.run_python(MAKE + textwrap.dedent(parent) + textwrap.dedent("""
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                exec(compile(CHILD, "child", "exec"))
                sys.exit(42)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
            for thing in things: del thing
            stillmap.CachingAllocator().allocate(100)  # the parent goes on
        """).replace("CHILD", repr(textwrap.dedent(child)), 1), **options)

    def test_every_call_says_so(self):
        self.fork("things = make()", """
            import ctypes
            heap, buffer, vector = things[:3]
            for call in (lambda: heap.allocate(1), heap.stats, heap.memory_map, buffer.fork, lambda: buffer.nbytes,
                         lambda: buffer.resize(9), lambda: vector.append(1), lambda: len(vector), vector.tolist,
                         lambda: stillmap.CachingAllocator(), lambda: stillmap.GrowableBuffer(1),
                         stillmap.device_info, stillmap.device_count, stillmap.stats, stillmap.memory_map,
                         lambda: stillmap.suspend("heap"), lambda: stillmap.snapshot("x", "heap"),
                         lambda: stillmap.restore("x"), lambda: stillmap.replay("x")):
                try:
                    call()
                except stillmap.NotSupportedError as error:
                    assert "fork" in str(error), error
                else:
                    raise SystemExit("no error")
            assert stillmap.version()
            heap.free(12345)  # destructors do that: the memory is the parent's
            malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
            assert malloc(heap.c_malloc)(heap.c_param, 100, 0) is None
            assert "fork" in stillmap.last_error()
        """)

    def test_objects_end_in_the_child(self):
        self.fork("things = make(); capsule = things[1].__dlpack__()", """
            del capsule
            things[0].close(); things[1].close()
            things.clear()
            gc.collect()
        """)

    def test_fork_before_the_first_use(self):
        self.run_python("""
            import os, sys, stillmap
            pid = os.fork()
            if pid == 0:
                assert stillmap.CachingAllocator().allocate(100)
                sys.exit(42)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
            assert stillmap.CachingAllocator().allocate(100)
        """)

    def test_while_other_threads_allocate(self):
        self.run_python("""
            import os, sys, threading, time, stillmap
            heap = stillmap.CachingAllocator()
            done = False
            def work():
                while not done: heap.free(heap.allocate(1 << 21)); heap.empty_cache()
            threads = [threading.Thread(target=work) for _ in range(3)]
            for t in threads: t.start()
            for _ in range(10):
                pid = os.fork()
                if pid == 0:
                    try:
                        heap.allocate(1)
                    except stillmap.NotSupportedError:
                        os._exit(42)
                    os._exit(1)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
            done = True
            for t in threads: t.join()
        """)


if __name__ == "__main__":
    unittest.main()
