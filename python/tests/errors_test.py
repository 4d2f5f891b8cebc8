"""What errors say: the bytes that were asked for, how many there were, and what to do."""

import unittest

import stillmap
from support import TestCase, device, driver, needs_vmm


class OutOfMemory(TestCase):
    """`value` is what the call was given, `limit` what there was for it."""

    def setUp(self):
        super().setUp()
        stillmap.trim()
        self.page = device()["page_bytes"]
        self.leave_free(64 * self.page)
        self.addCleanup(driver().library.hostcuda_occupy, 0, 0)

    def leave_free(self, nbytes):
        import ctypes
        driver().library.hostcuda_occupy(0, 0)
        free = stillmap.device_info()["free_bytes"]
        driver().library.hostcuda_occupy(0, ctypes.c_size_t(free - nbytes))

    def failure(self, operation, call, *arguments):
        error = self.assertRaisesSaying(stillmap.OutOfMemoryError, "", call, *arguments)
        self.assertEqual((error.operation, error.unit), (operation, "bytes"), error)
        return error.value // self.page, error.limit // self.page

    @needs_vmm
    def test_of_a_buffer(self):
        page = self.page
        with stillmap.GrowableBuffer(40 * page, reserve=256 * page) as buffer:
            self.assertEqual(self.failure("growable_buffer::resize", buffer.resize, 100 * page), (100, 64))
            self.assertEqual(self.failure("growable_buffer::reserve", buffer.reserve, 65 * page), (65, 64))
            self.assertEqual(self.failure("growable_buffer::commit", buffer.commit, 100 * page, 30 * page), (30, 24))
            self.assertEqual(self.failure("growable_buffer::commit", buffer.commit, 30 * page, 40 * page), (40, 34))
            buffer.resize(64 * page)
            with buffer.fork() as copy:
                self.assertEqual(self.failure("growable_buffer::make_writable", copy.make_writable, 0, 3 * page),
                                 (3, 0))
        self.assertRaises(stillmap.OutOfMemoryError, stillmap.GrowableBuffer, 65 * page)

    @needs_vmm
    def test_of_more_than_the_device_has(self):
        total = device()["total_bytes"]
        with stillmap.GrowableBuffer(8 * self.page) as buffer:
            for call in (buffer.resize, buffer.reserve):
                error = self.assertRaisesSaying(stillmap.OutOfMemoryError, "exceeds", call, 2 * total)
                self.assertEqual((error.value, error.limit), (2 * total, total))

    @needs_vmm
    def test_of_a_vector(self):
        with stillmap.DeviceVector("uint8", reserve=256 * self.page) as vector:
            vector.resize(40 * self.page)
            self.assertEqual(self.failure("device_vector::resize", vector.resize, 100 * self.page), (100, 64))
            self.assertEqual(self.failure("device_vector::reserve", vector.reserve, 100 * self.page), (100, 64))
            self.assertEqual(self.failure("device_vector::append", vector.extend, bytes(30 * self.page)), (70, 64))
            self.assertEqual(len(vector), 40 * self.page)

    def test_of_an_allocator(self):
        with stillmap.CachingAllocator() as heap:
            heap.allocate(40 * self.page)
            value, limit = self.failure("caching_allocator::allocate", heap.allocate, 50 * self.page)
            self.assertEqual(value, 50)
            self.assertLess(limit, 50)
            odd = self.assertRaisesSaying(stillmap.OutOfMemoryError, "", heap.allocate, 50 * self.page + 3)
            self.assertEqual(odd.value, 50 * self.page + 3)
            total = 2 * device()["total_bytes"] + 7
            self.assertEqual(self.assertRaisesSaying(stillmap.OutOfMemoryError, "larger", heap.allocate, total).value,
                             total)
            heap.limit = 45 * self.page
            error = self.assertRaisesSaying(stillmap.OutOfMemoryError, "the limit of the allocator", heap.allocate,
                                            10 * self.page)
            self.assertEqual((error.value, error.limit), (10 * self.page, 45 * self.page))

    def test_of_a_small_block(self):
        with stillmap.CachingAllocator(limit=self.page) as heap:
            heap.allocate(self.page)
            self.assertEqual(self.assertRaisesSaying(stillmap.OutOfMemoryError, "", heap.allocate, 100).value, 100)


@needs_vmm
class Copies(TestCase):
    def test_of_suspended_memory(self):
        page = device()["page_bytes"]
        buffer = stillmap.GrowableBuffer(4 * page, tag="away")
        vector = stillmap.DeviceVector("int32", range(1000), tag="away")
        vector.append(1)
        buffer.copy_from_host(b"here")
        stillmap.suspend("away")
        for call in (lambda: buffer.copy_from_host(b"there"), lambda: buffer.copy_to_host(4),
                     lambda: buffer.make_writable(0, 4), buffer.fork, lambda: buffer.alias(0, page),
                     vector.flush, vector.tolist, lambda: vector[3], lambda: vector.extend([1, 2]),
                     lambda: vector.__setitem__(3, 3), lambda: vector.insert(2, [1]), lambda: vector.pop(2),
                     lambda: vector.resize(2000), lambda: vector.extend(vector)):
            self.assertRaisesSaying(stillmap.BusyError, "resume it", call)
            self.assertEqual((buffer.nbytes, len(vector)), (4 * page, 1001))
        stillmap.resume("away")
        self.assertEqual(buffer.copy_to_host(4), b"here")
        self.assertEqual(vector.tolist(), [*range(1000), 1])

    def test_of_forked_memory(self):
        page = device()["page_bytes"]
        with stillmap.GrowableBuffer(4 * page) as buffer:
            buffer.copy_from_host(b"first", page)
            with buffer.fork() as copy:
                for each in (buffer, copy):
                    self.assertRaisesSaying(stillmap.BusyError, "make_writable", each.copy_from_host, b"x", page)
                    self.assertEqual(each.copy_to_host(5, page), b"first")
                copy.make_writable(page, 1)
                copy.copy_from_host(b"other", page)
                self.assertEqual((buffer.copy_to_host(5, page), copy.copy_to_host(5, page)), (b"first", b"other"))
                self.assertRaises(stillmap.BusyError, copy.copy_from_host, bytes(2 * page), page)


class NoDriver(TestCase):
    def test_the_error_says_what_to_do(self):
        said = self.run_python("""
            import stillmap
            try: stillmap.device_info()
            except stillmap.NotSupportedError as error: print(error)
        """, STILLMAP_DRIVER=self.path("none.so"))
        for hint in ("STILLMAP_HOSTCUDA", "STILLMAP_VERBOSE=1", "NVIDIA driver"):
            self.assertIn(hint, said)


if __name__ == "__main__":
    unittest.main()
