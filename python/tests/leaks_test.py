"""Nothing that is repeated keeps memory: references of Python, host memory, device memory."""

import gc
import resource
import sys
import unittest

import stillmap
from support import MiB, TestCase, driver, needs_vmm


def resident_kib():
    """Of the process's own; hostcuda's device memory is shared memory."""
    with open("/proc/self/statm") as file:
        pages = file.read().split()
    return (int(pages[1]) - int(pages[2])) * resource.getpagesize() // 1024


class Leaks(TestCase):
    def check(self, act, times=300):
        for _ in range(times):
            act()
        gc.collect()
        objects, host = len(gc.get_objects()), resident_kib()
        bytes_held = stillmap.stats()["physical_bytes"]
        for _ in range(4 * times):
            act()
        gc.collect()
        self.assertLess(len(gc.get_objects()) - objects, 20)
        self.assertLess(resident_kib() - host, 2048)
        self.assertLessEqual(stillmap.stats()["physical_bytes"], bytes_held)

    def test_errors(self):
        heap = stillmap.CachingAllocator(limit=MiB, on_out_of_memory=lambda n: 1 / 0)

        def act():
            for kind, call in ((ZeroDivisionError, lambda: heap.allocate(9 * MiB)), (stillmap.Error, lambda: heap.free(9)),
                               (TypeError, lambda: heap.allocate(1, 1.5)), (OSError, lambda: stillmap.restore("/no"))):
                self.assertRaises(kind, call)

        self.check(act, 100)

    def test_objects(self):
        def act():
            with stillmap.GrowableBuffer(4096) as buffer:
                buffer.copy_from_host(b"x" * 1000)
                buffer.copy_to_host(1000)
                buffer.__dlpack__()
                buffer.__dlpack__(max_version=(1, 0))
            vector = stillmap.DeviceVector("c8", [1, 2j])
            vector.append(3)
            vector.tolist(), vector.__cuda_array_interface__
            stillmap.CachingAllocator().allocate(10)

        self.check(act, 60)

    @needs_vmm
    def test_kv_arenas(self):
        shape = dict(layers=2, heads=2, dim=64, dtype="float16")

        def act():
            with stillmap.KVArena(**shape, blocks=64) as arena:
                arena.prepare(3)
                arena.begin_step()
                arena.release(arena.allocate(3), keep=True)
                arena.evict(3), arena.compact(3), arena.occupancy(), arena.committed_ranges(), arena.stats()
                self.assertRaises(stillmap.InvalidArgumentError, arena.retain, [64])
                tensor = arena.tensor(1, 1)
                tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 0)), tensor.__cuda_array_interface__
            sequences = stillmap.KVSequenceArena(**shape, longest=100, sequences=4)
            sequences.tensor(sequences.add(), 0)

        self.check(act, 60)

    def test_circles(self):
        def act():
            heap = stillmap.CachingAllocator(on_out_of_memory=lambda n: heap is None)
            heap.allocate(10)
            del heap
            gc.collect()  # else as many are alive as the collector likes

        self.check(act, 25)

    def test_control_servers(self):
        def act():
            with stillmap.serve(quiesce=lambda tags, stopped: server), stillmap.safe_region():
                server = stillmap.safe_point()

        self.check(act, 40)

    def test_reports(self):
        with stillmap.CachingAllocator() as heap:
            heap.record_history(events=100)
            heap.allocate(MiB)

            def act():
                heap.stats(), heap.memory_map().to_svg(), heap.to_json(), heap.to_torch_pickle(), stillmap.stats()
                stillmap.memory_map().to_html(), stillmap.device_info()

            self.check(act, 50)

    def test_references_of_arguments(self):
        class Stream:
            handle = driver().stream()

        stream, data, function = Stream(), bytearray(100), lambda n: False
        gc.collect()
        counts = [sys.getrefcount(o) for o in (stream, data, function, None)]
        for _ in range(500):
            heap = stillmap.CachingAllocator(on_out_of_memory=function, limit=4 * MiB)
            heap.free(heap.allocate(100, stream), stream)
            self.assertRaises(stillmap.OutOfMemoryError, heap.allocate, 9 * MiB)
            heap.close()
            buffer = stillmap.GrowableBuffer(100)
            buffer.copy_from_host(data, 0, stream)
            buffer.close()
        data.extend(b"not locked")
        gc.collect()
        after = [sys.getrefcount(o) for o in (stream, data, function, None)]
        self.assertEqual(after[:3], counts[:3])
        self.assertLess(abs(after[3] - counts[3]), 250)  # None's number varies by itself


if __name__ == "__main__":
    unittest.main()
