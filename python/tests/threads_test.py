"""The GIL is free while a call waits, and objects may be used by several threads."""

import threading
import time
import unittest

import stillmap
from support import MiB, TestCase, driver, needs_vmm


class Waiting(TestCase):
    """Each call waits behind work that ends only after another Python thread has run."""

    def check(self, call, stream=None):
        gate = driver().queue_gate(stream)
        opened = []

        def open_later():
            time.sleep(0.05)
            opened.append(time.monotonic())
            gate.open()

        other = threading.Thread(target=open_later)
        other.start()
        call()
        ended = time.monotonic()
        other.join()
        self.assertLessEqual(opened[0], ended)

    def test_copies(self):
        stream = driver().stream()
        buffer = stillmap.GrowableBuffer(MiB)
        self.check(lambda: buffer.copy_to_host(10, stream=stream), stream)
        self.check(lambda: buffer.copy_from_host(b"x", stream=stream), stream)
        vector = stillmap.DeviceVector("i4", [1], stream=stream)
        self.check(vector.tolist, stream)
        self.check(vector.synchronize, stream)
        self.check(lambda: vector.extend([1, 2]), stream)

    def test_ends_of_objects(self):
        for make in (lambda: stillmap.GrowableBuffer(MiB), lambda: stillmap.DeviceVector("i4", [1])):
            self.check(make().close)
            things = [make()]
            self.check(things.clear)  # the destructor
        heap = stillmap.CachingAllocator()
        heap.allocate(MiB)
        self.check(heap.close)
        heaps = [stillmap.CachingAllocator()]
        heaps[0].allocate(MiB)
        self.check(heaps.clear)

    @needs_vmm
    def test_suspend_and_snapshot(self):
        buffer = stillmap.GrowableBuffer(MiB, tag="waits")
        self.check(lambda: stillmap.suspend("waits"))
        stillmap.resume("waits")
        self.check(lambda: stillmap.snapshot(self.path("waits.smi"), "waits"))
        buffer.close()


class Together(TestCase):
    def run_all(self, *calls):
        failures = []

        def guarded(call):
            try:
                call()
            except BaseException as failure:  # noqa: B902
                failures.append(failure)

        threads = [threading.Thread(target=guarded, args=[call]) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertFalse(any(thread.is_alive() for thread in threads))
        self.assertEqual(failures, [])

    @needs_vmm
    def test_threads_allocate_while_another_suspends(self):
        quiet = stillmap.GrowableBuffer(8 * MiB, tag="quiet")
        quiet.copy_from_host(b"quiet")
        heap = stillmap.CachingAllocator(tag="busy")
        done = threading.Event()

        def allocate():
            while not done.is_set():
                blocks = [heap.allocate(n) for n in (1000, MiB, 3 * MiB)]
                for block in blocks:
                    heap.free(block)
                heap.empty_cache()

        def suspend():
            try:
                for _ in range(20):
                    stillmap.suspend("quiet")
                    stillmap.resume("quiet")
            finally:
                done.set()

        self.run_all(allocate, allocate, suspend)
        self.assertEqual(quiet.copy_to_host(5), b"quiet")

    def test_close_under_the_hands_of_others(self):
        for _ in range(20):
            heap = stillmap.CachingAllocator()
            buffer = stillmap.GrowableBuffer(MiB)
            vector = stillmap.DeviceVector("i4")

            def use(heap=heap, buffer=buffer, vector=vector):
                try:
                    while True:
                        heap.free(heap.allocate(1000))
                        buffer.resize(2 * MiB)
                        buffer.copy_to_host(10)
                        vector.append(1)
                        vector.tolist()
                except stillmap.InvalidArgumentError as error:
                    if "closed" not in str(error) and "no block" not in str(error):
                        raise

            def end(heap=heap, buffer=buffer, vector=vector):
                time.sleep(0.002)
                for thing in (vector, buffer, heap):
                    thing.close()

            self.run_all(use, use, end)

    def test_one_buffer_and_one_vector_for_all(self):
        buffer = stillmap.GrowableBuffer(reserve=64 * MiB)
        vector = stillmap.DeviceVector("int64")

        def grow():
            for i in range(50):
                buffer.resize(buffer.nbytes + 1000)
                vector.extend([i] * 10)

        self.run_all(grow, grow, grow)
        self.assertEqual(len(vector), 1500)
        self.assertEqual(sorted(vector.tolist()), sorted(list(range(50)) * 30))

    def test_callbacks_of_several_threads(self):
        heap = stillmap.CachingAllocator(limit=MiB, on_out_of_memory=lambda n: 1 / 0)

        def fail():
            for _ in range(50):
                self.assertRaises(ZeroDivisionError, heap.allocate, 8 * MiB)

        self.run_all(fail, fail, fail)


if __name__ == "__main__":
    unittest.main()
