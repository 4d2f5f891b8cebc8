"""CachingAllocator: requests, limits, reports, close, and the functions for C code."""

import ctypes
import gc
import json
import pickle
import traceback
import unittest
import weakref

import stillmap
from support import MiB, TestCase, driver, needs_vmm


class Requests(TestCase):
    def setUp(self):
        super().setUp()
        self.heap = stillmap.CachingAllocator(tag="requests")
        self.addCleanup(self.heap.close)

    def test_a_block_has_memory(self):
        block = self.heap.allocate(3 * MiB)
        driver().write(block + 2 * MiB, b"contents")
        self.assertEqual(driver().read(block + 2 * MiB, 8), b"contents")
        self.assertGreaterEqual(self.heap.usable_size(block), 3 * MiB)
        self.assertTrue(self.heap.owns(block))
        self.assertFalse(self.heap.owns(1))
        self.heap.free(block)

    def test_a_freed_block_serves_the_next_request_of_its_stream(self):
        block = self.heap.allocate(MiB)
        self.heap.free(block)
        self.assertEqual(self.heap.allocate(MiB), block)

    def test_zero_and_alignment(self):
        block = self.heap.allocate(1000, zero=True, alignment=1 << 16)
        self.assertEqual(block % (1 << 16), 0)
        self.assertEqual(driver().read(block, 1000), bytes(1000))

    def test_no_bytes_are_no_block(self):
        self.assertEqual(self.heap.allocate(0), 0)
        self.heap.free(0)

    def test_memory_used_by_another_stream_waits_for_it(self):
        first, second = driver().stream(), driver().stream()
        block = self.heap.allocate(MiB, first)
        gate = driver().queue_gate(second)
        self.heap.record_use(block, second)
        self.heap.free(block)
        self.assertEqual(self.heap.stats()["total"]["pending_free"], MiB)
        gate.open()
        self.heap.forget_stream(first)
        self.heap.forget_stream(second)
        driver().destroy(first)
        driver().destroy(second)

    def test_what_is_no_block_is_refused(self):
        block = self.heap.allocate(MiB)
        self.heap.free(block)
        for call in (lambda: self.heap.free(block), lambda: self.heap.free(12345),
                     lambda: self.heap.record_use(block, 0), lambda: self.heap.usable_size(block)):
            error = self.assertRaisesSaying(stillmap.InvalidArgumentError, "block", call)
            self.assertEqual(error.unit, "address")

    def test_wrong_arguments(self):
        for call in (lambda: self.heap.allocate(-1), lambda: self.heap.allocate("1"),
                     lambda: self.heap.allocate(), lambda: self.heap.free(-1),
                     lambda: stillmap.CachingAllocator("0"),
                     lambda: stillmap.CachingAllocator(limit="1"),
                     lambda: stillmap.CachingAllocator(peer_devices=3),
                     lambda: stillmap.CachingAllocator(on_out_of_memory=3),
                     lambda: stillmap.CachingAllocator(record_to=3)):
            self.assertRaises(TypeError, call)
        self.assertRaises(ValueError, self.heap.allocate, 100, alignment=3)
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.CachingAllocator, 99)
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.CachingAllocator, -1)
        with self.assertRaises(TypeError), self.assertWarns(RuntimeWarning):  # not made half
            stillmap.CachingAllocator.__new__(stillmap.CachingAllocator).allocate(1)

    def test_free_memory_goes_back(self):
        self.heap.free(self.heap.allocate(8 * MiB))
        held = self.heap.stats()["total"]["committed"]
        self.assertGreaterEqual(held, 8 * MiB)
        self.assertEqual(self.heap.trim(held)["released"], 0)
        self.assertGreaterEqual(self.heap.empty_cache()["released"], 8 * MiB)
        self.assertEqual(self.heap.stats()["total"]["committed"], 0)


class PageSize(TestCase):
    @needs_vmm
    def test_memory_comes_in_pages(self):
        with stillmap.CachingAllocator(page_size=8 * MiB) as heap:
            heap.allocate(1)
            stats = heap.stats()
            self.assertEqual((stats["page_size"], stats["total"]["committed"]), (8 * MiB, 8 * MiB))

    def test_a_power_of_two(self):
        error = self.assertRaisesSaying(stillmap.InvalidArgumentError, "not a power of two",
                                        lambda: stillmap.CachingAllocator(page_size=3 * MiB))
        self.assertEqual((error.operation, error.value), ("caching_allocator::create", 3 * MiB))


class Limits(TestCase):
    def test_the_limit(self):
        with stillmap.CachingAllocator(limit=4 * MiB) as heap:
            error = self.assertRaisesSaying(stillmap.OutOfMemoryError, "limit", heap.allocate, 8 * MiB)
            self.assertIsInstance(error, MemoryError)
            self.assertEqual((error.operation, error.limit, error.unit),
                             ("caching_allocator::allocate", 4 * MiB, "bytes"))
            heap.limit = 16 * MiB
            self.assertEqual(heap.limit, 16 * MiB)
            heap.limit = None
            self.assertIsNone(heap.limit)
            self.assertIsNone(heap.stats()["limit"])
            self.assertNotEqual(heap.allocate(8 * MiB), 0)

    def test_a_callback_that_frees_memory(self):
        asked = []

        def drop(nbytes):
            asked.append(nbytes)
            while blocks:
                heap.free(blocks.pop())
                return True
            return False

        with stillmap.CachingAllocator(limit=8 * MiB, on_out_of_memory=drop) as heap:
            blocks = [heap.allocate(4 * MiB), heap.allocate(4 * MiB)]
            self.assertNotEqual(heap.allocate(4 * MiB), 0)
            self.assertEqual(len(blocks), 1)
            self.assertRaises(stillmap.OutOfMemoryError, heap.allocate, 16 * MiB)
            self.assertEqual(asked[0], 4 * MiB)

    def test_an_exception_of_the_callback_arrives(self):
        for kind in (ZeroDivisionError, KeyboardInterrupt):
            def fail(nbytes, kind=kind):
                raise kind("in the callback")

            with stillmap.CachingAllocator(limit=MiB, on_out_of_memory=fail) as heap:
                try:
                    heap.allocate(8 * MiB)
                    self.fail("nothing was raised")
                except kind as error:
                    self.assertIsInstance(error.__context__, stillmap.OutOfMemoryError)
                    self.assertIn("fail", [f.name for f in traceback.extract_tb(error.__traceback__)])
                self.assertEqual(heap.stats()["total"]["blocks"], 0)

    def test_a_callback_may_use_another_allocator_that_fails_too(self):
        def inner_fails(nbytes):
            with self.assertRaises(ZeroDivisionError):
                inner.allocate(8 * MiB)
            return False

        inner = stillmap.CachingAllocator(limit=MiB, on_out_of_memory=lambda n: 1 / 0)
        outer = stillmap.CachingAllocator(limit=MiB, on_out_of_memory=inner_fails)
        self.assertRaises(stillmap.OutOfMemoryError, outer.allocate, 8 * MiB)

    def test_a_callback_may_close_the_allocator(self):
        def close(nbytes):
            heap.close()
            return False

        heap = stillmap.CachingAllocator(limit=MiB, on_out_of_memory=close)
        self.assertRaises(stillmap.OutOfMemoryError, heap.allocate, 8 * MiB)
        self.assertTrue(heap.closed)

    def test_an_answer_without_a_truth_value(self):
        class Neither:
            def __bool__(self):
                raise LookupError("neither")

        heap = stillmap.CachingAllocator(limit=MiB, on_out_of_memory=lambda n: Neither())
        self.assertRaises(LookupError, heap.allocate, 8 * MiB)


class Lifetime(TestCase):
    def test_closed(self):
        heap = stillmap.CachingAllocator(tag="closed")
        block = heap.allocate(MiB)
        heap.close()
        heap.close()
        for call in (lambda: heap.allocate(1), lambda: heap.free(block), lambda: heap.stats(),
                     lambda: heap.limit, lambda: heap.empty_cache(), lambda: heap.memory_map(),
                     lambda: heap.owns(block), lambda: heap.c_param, lambda: heap.mark_iteration()):
            self.assertRaisesSaying(stillmap.InvalidArgumentError, "closed", call)
        self.assertIn("closed", repr(heap))
        self.assertEqual((heap.tag, heap.device), ("closed", 0))

    @needs_vmm
    def test_close_releases_blocks_in_use(self):
        with stillmap.CachingAllocator(tag="released") as heap:
            heap.allocate(8 * MiB)
            self.assertEqual(stillmap.stats()["tags"]["released"]["mapped_bytes"], 8 * MiB)
        self.assertNotIn("released", stillmap.stats()["tags"])

    def test_a_circle_through_the_callback_is_collected(self):
        class Owner:
            def __init__(self):
                self.heap = stillmap.CachingAllocator(on_out_of_memory=self.drop)

            def drop(self, nbytes):
                return False

        seen = weakref.ref(Owner().heap)
        gc.collect()
        self.assertIsNone(seen())


class ForC(TestCase):
    def setUp(self):
        super().setUp()
        self.complaints = []
        before = stillmap.CachingAllocator(limit=4 * MiB, on_out_of_memory=self.fail_once)
        self.heap = before
        self.malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                       ctypes.c_int)(self.heap.c_malloc)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p,
                                     ctypes.c_int)(self.heap.c_free)

    def fail_once(self, nbytes):
        self.complaints.append(nbytes)
        raise ValueError("of the callback")

    def test_blocks(self):
        block = self.malloc(self.heap.c_param, MiB, 0)
        self.assertTrue(self.heap.owns(block))
        self.free(self.heap.c_param, block, 0)
        self.assertEqual(self.heap.stats()["total"]["blocks"], 0)
        self.free(self.heap.c_param, None, 0)

    def test_failure_is_null_with_a_reason(self):
        import sys
        unraisable = []
        before, sys.unraisablehook = sys.unraisablehook, unraisable.append
        self.addCleanup(setattr, sys, "unraisablehook", before)
        self.assertIsNone(self.malloc(self.heap.c_param, 100 * MiB, 0))
        self.assertIn("limit", stillmap.last_error())
        # C code cannot take the callback's exception: Python's hook gets it.
        self.assertEqual([type(u.exc_value) for u in unraisable], [ValueError])
        self.assertIsNone(self.malloc(self.heap.c_param, MiB, 7))
        self.assertIn("another device", stillmap.last_error())
        self.assertIsNone(self.malloc(None, MiB, 0))

    def test_after_close_they_do_nothing(self):
        param = self.heap.c_param
        block = self.malloc(param, MiB, 0)
        self.heap.close()
        del self.heap
        gc.collect()
        self.free(param, block, 0)
        self.assertIsNone(self.malloc(param, MiB, 0))
        self.assertIn("closed", stillmap.last_error())

    def test_functions_without_a_parameter_are_those_of_one_allocator(self):
        kinds = (ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t), ctypes.CFUNCTYPE(None, ctypes.c_void_p),
                 ctypes.CFUNCTYPE(None))
        malloc, free, empty = (kind(address) for kind, address in zip(kinds, self.heap.c_functions))
        self.assertEqual(self.heap.c_functions, self.heap.c_functions)
        with stillmap.CachingAllocator() as other:
            self.assertFalse(set(other.c_functions) & set(self.heap.c_functions))
        block = malloc(MiB)
        self.assertTrue(self.heap.owns(block))
        free(block)
        self.assertEqual(self.heap.stats()["total"]["blocks"], 0)
        empty()
        self.assertEqual(self.heap.stats()["total"]["committed"], 0)
        self.heap.close()
        free(block)
        empty()
        self.assertIsNone(malloc(MiB))
        self.assertIn("closed", stillmap.last_error())


class Reports(TestCase):
    def test_statistics(self):
        with stillmap.CachingAllocator() as heap:
            stream = driver().stream()
            heap.allocate(1000)
            heap.allocate(3 * MiB, stream)
            stats = heap.stats()
            self.assertEqual(stats["total"]["requested"], 1000 + 3 * MiB)
            self.assertEqual([a["stream"] for a in stats["arenas"]], [0, stream])
            self.assertEqual(stats["total"]["allocations"], 2)
        driver().destroy(stream)

    def test_peaks_begin_again(self):
        with stillmap.CachingAllocator() as heap:
            heap.free(heap.allocate(64 * MiB))
            kept = heap.allocate(4 * MiB)
            heap.empty_cache()
            before = heap.stats()
            self.assertEqual(before["total"]["live_peak"], 64 * MiB)
            heap.reset_peaks()
            after = heap.stats()
            self.assertEqual(after["total"]["live_peak"], 4 * MiB)
            self.assertEqual(after["committed_peak"], after["total"]["committed"])
            self.assertLessEqual(after["committed_peak"], before["committed_peak"])
            heap.free(heap.allocate(32 * MiB))
            self.assertEqual(heap.stats()["total"]["live_peak"], 36 * MiB)
            self.assertGreaterEqual(heap.stats()["committed_peak"], 36 * MiB)
            heap.free(kept)

    def test_history_for_viewers(self):
        with stillmap.CachingAllocator() as heap:
            heap.record_history(events=100, stack_depth=2)
            heap.free(heap.allocate(MiB))
            heap.stop_history()
            actions = [e["action"] for e in json.loads(heap.to_json())["history"]["events"]]
            self.assertIn("allocate", actions)
            self.assertIn("free_completed", actions)
            self.assertEqual(len(pickle.loads(heap.to_torch_pickle())["segments"]), 1)
            self.assertRaises(stillmap.InvalidArgumentError, heap.record_history, events=0)

    def test_map(self):
        with stillmap.CachingAllocator(tag="<drawn> & saved") as heap:
            heap.allocate(3 * MiB)
            drawn = heap.memory_map()
        self.assertEqual(drawn._repr_svg_(), drawn.to_svg())  # also after the allocator's end
        self.assertIn("&lt;drawn&gt; &amp; saved", drawn.to_svg())
        self.assertGreaterEqual(drawn.figures()["live"], 3 * MiB)
        self.assertIn("<script>", drawn.to_html())
        json.loads(drawn.to_json())
        for name, begin in (("a.svg", b"<"), ("a.html", b"<!"), ("a.json", b"{"), ("a.pickle", b"\x80")):
            drawn.save(self.path(name))
            with open(self.path(name), "rb") as file:
                self.assertTrue(file.read().startswith(begin), name)
        error = self.assertRaisesSaying(stillmap.InvalidArgumentError, ".svg", drawn.save, "a.png")
        self.assertEqual(error.subject, "a.png")
        self.assertRaises(FileNotFoundError, drawn.save, self.path("no/folder.svg"))

    @needs_vmm
    def test_map_of_a_device(self):
        buffer = stillmap.GrowableBuffer(4 * MiB, tag="mapped here")
        alias = buffer.alias(0, 4 * MiB)
        drawn = stillmap.memory_map()
        self.assertIn("mapped here", drawn.to_svg())
        self.assertGreaterEqual(drawn.figures()["aliased"], 4 * MiB)
        del alias


if __name__ == "__main__":
    unittest.main()
