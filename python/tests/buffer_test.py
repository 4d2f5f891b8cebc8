"""GrowableBuffer: growing in place, sharing pages, host copies, and what views forbid."""

import gc
import unittest

import stillmap
from support import MiB, TestCase, device, driver, needs_vmm, numpy_or_skip


class Growing(TestCase):
    @needs_vmm
    def test_the_address_and_the_contents_stay(self):
        with stillmap.GrowableBuffer(2 * MiB, tag="grows", reserve=64 * MiB) as buffer:
            address = buffer.address
            buffer.copy_from_host(b"first", MiB)
            buffer.resize(32 * MiB)
            buffer.copy_from_host(b"last", 32 * MiB - 4)
            self.assertEqual(buffer.address, address)
            self.assertEqual(buffer.copy_to_host(5, MiB), b"first")
            self.assertEqual(buffer.copy_to_host(offset=32 * MiB - 4), b"last")
            self.assertTrue(buffer.in_place)
            self.assertEqual(len(buffer), buffer.nbytes)
            self.assertEqual(buffer.stats()["bytes_copied"], 0)

    def test_sizes(self):
        with stillmap.GrowableBuffer() as buffer:
            self.assertTrue(buffer)
            self.assertEqual(buffer.nbytes, 0)
            buffer.reserve(5 * MiB)
            self.assertGreaterEqual(buffer.capacity, 5 * MiB)
            buffer.resize(MiB)
            buffer.shrink_to_fit(relocate=not buffer.in_place)
            self.assertLess(buffer.capacity, 5 * MiB)

    @needs_vmm
    def test_trim_gives_the_pages_of_closed_buffers_back(self):
        stillmap.trim()
        free = stillmap.device_info()["free_bytes"]
        with stillmap.GrowableBuffer(32 * MiB):
            pass
        self.assertEqual(stillmap.device_info()["free_bytes"], free - 32 * MiB, "they wait for the next buffer")
        self.assertEqual(stillmap.trim(keep=8 * MiB), 24 * MiB)
        self.assertEqual(stillmap.trim(), 8 * MiB)
        self.assertEqual(stillmap.device_info()["free_bytes"], free)

    @needs_vmm
    def test_trim_gives_back_what_no_work_uses_any_more(self):
        stillmap.trim()
        start = stillmap.stats()
        stream = driver().stream()
        gate = driver().queue_gate(stream)
        vector = stillmap.DeviceVector("uint8", stream=stream, reserve=512 * MiB)
        vector.resize(256 * MiB)
        vector.resize(MiB)
        vector.shrink_to_fit()           # behind the queued work
        self.assertEqual(stillmap.trim(), 0)
        gate.open()
        vector.synchronize()
        self.assertEqual(stillmap.trim(), 254 * MiB)
        vector.close()
        stillmap.trim()
        for figure in ("physical_bytes", "mapped_bytes", "retiring_mappings"):
            self.assertEqual(stillmap.stats()[figure], start[figure])

    @needs_vmm
    def test_closing_and_shrinking_unmap_what_was_given_back_before(self):
        page = device()["page_bytes"]
        def give(call):
            stillmap.trim()
            before = stillmap.stats()["mapped_bytes"]
            stream = driver().stream()
            gate = driver().queue_gate(stream)
            vector = stillmap.DeviceVector("uint8", stream=stream, reserve=64 * page)
            other = stillmap.GrowableBuffer(4 * page, reserve=8 * page)
            vector.resize(32 * page)
            vector.resize(page)
            vector.shrink_to_fit()
            gate.open()
            vector.synchronize()
            call(other)
            mapped = stillmap.stats()["mapped_bytes"] - before
            vector.close(), other.close()
            return mapped // page
        def shrink(other):
            other.resize(2 * page)
            other.shrink_to_fit()
        self.assertEqual(give(lambda other: other.decommit(3 * page, page)), 4)
        self.assertEqual(give(shrink), 3)
        self.assertEqual(give(lambda other: other.close()), 1)

    def test_every_kind_of_host_memory(self):
        with stillmap.GrowableBuffer(100) as buffer:
            for data in (b"bytes", bytearray(b"array"), memoryview(b"view."), memoryview(b"abcdabcd").cast("I")):
                buffer.copy_from_host(data)
                self.assertEqual(buffer.copy_to_host(5), bytes(data)[:5])
            self.assertRaises(BufferError, buffer.copy_from_host, memoryview(b"abcdef")[::2])
            self.assertRaises(TypeError, buffer.copy_from_host, "text")
            self.assertRaises(TypeError, buffer.copy_from_host, [1, 2])

    def test_ranges_outside(self):
        with stillmap.GrowableBuffer(100, reserve=4 * MiB) as buffer:
            for call in (lambda: buffer.copy_to_host(1 << 60), lambda: buffer.copy_to_host(10, 1 << 60),
                         lambda: buffer.copy_to_host(offset=101), lambda: buffer.copy_from_host(b"x", 1 << 60),
                         lambda: buffer.copy_to_host(2**64 - 1, 2**64 - 1)):
                self.assertRaises(stillmap.InvalidArgumentError, call)
            self.assertEqual(buffer.copy_to_host(offset=100), b"")

    def test_more_than_the_device_has(self):
        with stillmap.GrowableBuffer(MiB) as buffer:
            error = self.assertRaisesSaying(stillmap.OutOfMemoryError, "memory", buffer.resize,
                                            2 * device()["total_bytes"])
            self.assertEqual(error.unit, "bytes")
            self.assertEqual(buffer.nbytes, MiB)
        self.assertRaises(stillmap.Error, stillmap.GrowableBuffer, 1 << 62)

    def test_wrong_arguments(self):
        for call in (lambda: stillmap.GrowableBuffer(-1), lambda: stillmap.GrowableBuffer("1"),
                     lambda: stillmap.GrowableBuffer(tag=1), lambda: stillmap.GrowableBuffer(1).resize(None),
                     lambda: stillmap.GrowableBuffer(1).resize(1, "stream")):
            self.assertRaises(TypeError, call)
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.GrowableBuffer, 1, device=99)

    def test_closed(self):
        buffer = stillmap.GrowableBuffer(MiB)
        buffer.close()
        buffer.close()
        for call in (lambda: buffer.nbytes, lambda: buffer.address, lambda: buffer.resize(1), lambda: len(buffer),
                     lambda: buffer.__cuda_array_interface__, lambda: buffer.__dlpack__(), buffer.fork):
            self.assertRaisesSaying(stillmap.InvalidArgumentError, "closed", call)


@needs_vmm
class Pages(TestCase):
    def test_a_ring(self):
        page = device()["page_bytes"]
        with stillmap.GrowableBuffer(page) as buffer, buffer.alias(0, page, 2) as ring:
            buffer.copy_from_host(b"round")
            self.assertEqual(ring.copy_to_host(5, page), b"round")
            self.assertNotEqual(ring.address, buffer.address)

    def test_a_copy_on_write(self):
        with stillmap.GrowableBuffer(4 * MiB) as buffer:
            buffer.copy_from_host(b"old")
            with buffer.fork() as copy:
                copy.make_writable(0, 3)
                copy.copy_from_host(b"new")
                self.assertEqual((buffer.copy_to_host(3), copy.copy_to_host(3)), (b"old", b"new"))

    def test_sparse_memory(self):
        page = device()["page_bytes"]
        with stillmap.GrowableBuffer(reserve=64 * page) as buffer:
            buffer.commit(8 * page, page)
            self.assertEqual(buffer.stats()["mapped_bytes"], page)
            buffer.copy_from_host(b"far", 8 * page)
            buffer.decommit(8 * page, page)
            self.assertEqual(buffer.stats()["mapped_bytes"], 0)
            self.assertRaises(stillmap.InvalidArgumentError, buffer.commit, 1, page)


class Views(TestCase):
    def test_what_would_invalidate_a_view_is_busy(self):
        buffer = stillmap.GrowableBuffer(4 * MiB, reserve=8 * MiB)
        view = buffer.__dlpack__(stream=-1)
        for call in (buffer.close, buffer.shrink_to_fit, buffer.fork, lambda: buffer.resize(MiB),
                     lambda: buffer.decommit(0, 2 * MiB), lambda: buffer.resize(64 * MiB),
                     lambda: buffer.reserve(64 * MiB)):
            self.assertRaisesSaying(stillmap.BusyError, "views", call)
        if buffer.in_place:
            buffer.resize(8 * MiB)
        del view
        buffer.resize(MiB)
        buffer.close()

    def test_numpy(self):
        numpy = numpy_or_skip()
        buffer = stillmap.GrowableBuffer(4 * MiB)
        view = buffer.numpy()
        view[:3] = (1, 2, 3)
        self.assertEqual(buffer.copy_to_host(3), b"\1\2\3")
        buffer.copy_from_host(b"\7")
        self.assertEqual(view[0], 7)
        self.assertIs(view.dtype, numpy.dtype("uint8"))
        part = view[5:9]
        del view
        self.assertRaises(stillmap.BusyError, buffer.close)
        del buffer, part  # the last of them frees the memory
        gc.collect()

    @needs_vmm
    def test_numpy_of_memory_that_cannot_be_read(self):
        numpy_or_skip()
        buffer = stillmap.GrowableBuffer(4 * MiB, tag="away")
        stillmap.suspend("away")
        self.assertRaisesSaying(stillmap.NotSupportedError, "suspended", buffer.numpy)
        stillmap.resume("away")
        self.assertEqual(len(buffer.numpy()), 4 * MiB)

    def test_numpy_of_unbacked_memory(self):
        numpy_or_skip()
        self.run_python("""
            import stillmap
            buffer = stillmap.GrowableBuffer(4 << 20)
            try:
                buffer.numpy()
            except stillmap.NotSupportedError as error:
                assert "without memory" in str(error)
            else:
                raise SystemExit(1)
        """, HOSTCUDA="unbacked")


if __name__ == "__main__":
    unittest.main()
