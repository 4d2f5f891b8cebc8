"""What other libraries see of device memory: __cuda_array_interface__ and DLPack; streams they pass."""

import ctypes
import gc
import threading
import unittest
import weakref

import stillmap
from support import MiB, TestCase, driver


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


def consume(capsule, name, kind):
    """Takes the structure out of a capsule, as a library does."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    at = api.PyCapsule_GetPointer(capsule, name)
    api.PyCapsule_SetName(capsule, USED[name])
    return kind.from_address(at)


USED = {name: b"used_" + name for name in (b"dltensor", b"dltensor_versioned")}  # the capsule keeps the pointer


class Dlpack(TestCase):
    def check(self, tensor, buffer):
        self.assertEqual((tensor.data, tensor.device.type, tensor.device.id), (buffer.address, 2, 0))
        self.assertEqual((tensor.ndim, tensor.shape[0], tensor.strides[0]), (1, len(buffer), 1))

    def test_both_versions(self):
        buffer = stillmap.GrowableBuffer(MiB)
        old = consume(buffer.__dlpack__(stream=-1), b"dltensor", Managed)
        new = consume(buffer.__dlpack__(stream=-1, max_version=(1, 0)), b"dltensor_versioned", Versioned)
        self.check(old.tensor, buffer)
        self.check(new.tensor, buffer)
        self.assertEqual((new.major, new.flags, old.tensor.code, old.tensor.bits), (1, 0, 1, 8))
        self.assertEqual(buffer.__dlpack_device__(), (2, 0))
        for taken in (old, new):
            self.assertRaises(stillmap.BusyError, buffer.close)
            taken.deleter(ctypes.addressof(taken))
        buffer.close()

    def test_a_capsule_that_nobody_takes(self):
        buffer = stillmap.GrowableBuffer(MiB)
        buffer.__dlpack__()
        buffer.close()

    def test_the_tensor_keeps_the_memory(self):
        buffer = stillmap.GrowableBuffer(MiB)
        alive = weakref.ref(buffer)
        taken = consume(buffer.__dlpack__(), b"dltensor", Managed)
        address = buffer.address
        buffer.copy_from_host(b"kept")
        del buffer
        gc.collect()
        self.assertEqual(driver().read(address, 4), b"kept")
        # ctypes gives the GIL up for the call: the deleter has to take it.
        thread = threading.Thread(target=taken.deleter, args=[ctypes.addressof(taken)])
        thread.start()
        thread.join()
        self.assertIsNone(alive())

    def test_elements(self):
        for name, code, bits in (("f4", 2, 32), ("i2", 0, 16), ("c8", 5, 64), ("?", 6, 8)):
            vector = stillmap.DeviceVector(name, [1, 0, 1])
            taken = consume(vector.__dlpack__(), b"dltensor", Managed)
            self.assertEqual((taken.tensor.code, taken.tensor.bits, taken.tensor.lanes), (code, bits, 1))
            self.check(taken.tensor, vector)
            taken.deleter(ctypes.addressof(taken))

    def test_what_is_refused(self):
        vector = stillmap.DeviceVector("f4", [1])
        self.assertRaises(BufferError, vector.__dlpack__, copy=True)
        self.assertRaises(BufferError, vector.__dlpack__, dl_device=(1, 0))
        self.assertRaises(ValueError, vector.__dlpack__, stream=0)
        self.assertRaises(TypeError, vector.__dlpack__, stream="x")
        self.assertRaises(TypeError, vector.__dlpack__, max_version=3)
        vector.__dlpack__(dl_device=(2, 0), copy=False)
        vector.close()  # what was refused is not counted

    def test_the_consumers_stream_waits(self):
        producer, consumer = driver().stream(), driver().stream()
        vector = stillmap.DeviceVector("i4", [1], stream=producer)
        gate = driver().queue_gate(producer)
        capsule = vector.__dlpack__(stream=consumer)
        self.assertEqual(driver().library.cuStreamQuery(ctypes.c_void_p(consumer)), 600)  # not ready
        unordered = driver().stream()
        vector.__dlpack__(stream=-1)
        self.assertEqual(driver().library.cuStreamQuery(ctypes.c_void_p(unordered)), 0)
        gate.open()
        driver().call("cuStreamSynchronize", ctypes.c_void_p(consumer))
        del capsule


class Interface(TestCase):
    def test_fields(self):
        buffer = stillmap.GrowableBuffer(MiB)
        self.assertEqual(buffer.__cuda_array_interface__, {
            "shape": (MiB,), "typestr": "|u1", "data": (buffer.address, False), "version": 3,
            "strides": None, "stream": None})
        stream = driver().stream()
        buffer.resize(2 * MiB, stream)
        self.assertEqual(buffer.__cuda_array_interface__["stream"], stream)
        vector = stillmap.DeviceVector("c8", [1])
        self.assertEqual(vector.__cuda_array_interface__["typestr"], "<c8")
        self.assertEqual(vector.__cuda_array_interface__["stream"], 1)
        self.assertEqual(stillmap.DeviceVector("f4").__cuda_array_interface__["data"], (0, False))


class Addresses(TestCase):
    """An address changes only where the call says relocate=True, whoever has it: not all users are counted."""

    FULL = 2 * MiB

    def full(self, kind):
        """An object whose reservation (or capacity, where pages cannot be mapped) is in use, and its bytes."""
        stillmap.trim()
        if kind is stillmap.GrowableBuffer:
            made = kind(self.FULL, reserve=self.FULL)
        else:
            made = kind("u1", bytes(self.FULL), reserve=self.FULL)
        limit = made.reserved if kind is stillmap.GrowableBuffer else made.capacity
        if limit > self.FULL:
            made.resize(limit)
        return made, limit

    def contents(self, made):
        return len(made), made.address, bytes(made.copy_to_host() if hasattr(made, "copy_to_host") else made.to_host())

    def growths(self, made, limit, **options):
        """Each way to grow, with the bytes that it asks for."""
        if isinstance(made, stillmap.GrowableBuffer):
            yield limit + 7, lambda: made.resize(limit + 7, **options)
            yield limit + 7, lambda: made.resize(limit + 7, 0, **options)
            yield limit + 7, lambda: made.reserve(limit + 7, **options)
            return
        other = stillmap.DeviceVector("u1", b"xyz")
        yield limit + 1, lambda: made.append(1, **options)
        yield limit + 3, lambda: made.extend(b"abc", **options)
        yield limit + 3, lambda: made.extend(other, **options)
        yield limit + 2, lambda: made.insert(5, b"ab", **options)
        yield limit + 1, lambda: made.insert(5, 1, **options)
        yield limit + 7, lambda: made.resize(limit + 7, **options)
        yield limit + 7, lambda: made.reserve(limit + 7, **options)

    def test_growth_past_the_reservation_is_refused_with_both_numbers(self):
        for kind in (stillmap.GrowableBuffer, stillmap.DeviceVector):
            made, limit = self.full(kind)
            before = self.contents(made)
            for n, (asked, grow) in enumerate(self.growths(made, limit)):
                with self.subTest(kind=kind.__name__, growth=n):
                    error = self.assertRaisesSaying(stillmap.InvalidArgumentError, "relocate=True", grow)
                    self.assertEqual((error.value, error.limit, error.unit), (asked, limit, "bytes"))
                    self.assertEqual(self.contents(made), before)

    def test_with_a_view_relocation_is_busy(self):
        for kind in (stillmap.GrowableBuffer, stillmap.DeviceVector):
            made, limit = self.full(kind)
            view = made.__dlpack__(stream=-1)
            before = self.contents(made)
            for n, (asked, grow) in enumerate(self.growths(made, limit, relocate=True)):
                with self.subTest(kind=kind.__name__, growth=n):
                    error = self.assertRaisesSaying(stillmap.BusyError, "views", grow)
                    self.assertEqual((error.value, error.limit), (asked, limit))
                    self.assertEqual(self.contents(made), before)
            del view

    def test_asked_for_by_name_it_moves_with_its_contents(self):
        for kind in (stillmap.GrowableBuffer, stillmap.DeviceVector):
            count = len(list(self.growths(*self.full(kind))))
            for n in range(count):
                with self.subTest(kind=kind.__name__, growth=n):
                    made, limit = self.full(kind)
                    size, _, before = self.contents(made)
                    list(self.growths(made, limit, relocate=True))[n][1]()
                    self.assertGreaterEqual(made.capacity, limit + 1)
                    grown = self.contents(made)[2]
                    self.assertEqual((grown[:5], grown[size - 5:size]), (before[:5], before[size - 5:size]))

    def test_elements_within_the_reservation_never_move_it(self):
        vector = stillmap.DeviceVector("u1", bytes(self.FULL - 1000), reserve=self.FULL)
        vector.reserve(self.FULL)
        vector.extend(bytes(vector.capacity - len(vector) - 1000))
        beside = stillmap.GrowableBuffer(reserve=self.FULL, hint=vector.address + self.FULL)  # so that growth moves
        address, view = vector.address, vector.__dlpack__(stream=-1)
        for i in range(1000):  # one by one: they are gathered in batches larger than what is left
            vector.append(i % 251)
        vector.synchronize()
        self.assertEqual(vector.address, address)
        self.assertEqual(vector.tolist()[-1000:], [i % 251 for i in range(1000)])
        del view, beside

    def test_more_than_the_device_has_is_out_of_memory(self):
        total = stillmap.device_info()["total_bytes"]
        for kind in (stillmap.GrowableBuffer, stillmap.DeviceVector):
            made, _ = self.full(kind)
            for relocate in (False, True):
                error = self.assertRaisesSaying(stillmap.OutOfMemoryError, "memory", made.resize, 3 * total,
                                                relocate=relocate)
                self.assertEqual(error.value, 3 * total)

    def test_giving_memory_back_does_not_change_the_address(self):
        for kind in (stillmap.GrowableBuffer, stillmap.DeviceVector):
            made = kind("u1") if kind is stillmap.DeviceVector else kind()
            made.reserve(8 * MiB)
            made.resize(MiB)
            address = made.address
            if stillmap.device_info()["vmm"]:
                made.shrink_to_fit()
                self.assertEqual(made.address, address)
            else:
                self.assertRaisesSaying(stillmap.InvalidArgumentError, "relocate=True", made.shrink_to_fit)
                self.assertEqual((made.address, made.capacity), (address, 8 * MiB))
                made.shrink_to_fit(relocate=True)
            self.assertLess(made.capacity, 8 * MiB)

    def test_where_growth_copies_an_address_that_nobody_has_may_change(self):
        vector = stillmap.DeviceVector("u1", bytes(self.FULL))
        vector.extend(bytes(2 * self.FULL))
        vector.resize(self.FULL)
        vector.shrink_to_fit()
        self.assertEqual(len(vector), self.FULL)
        shown = vector.__cuda_array_interface__["data"][0]
        if not stillmap.device_info()["vmm"]:
            self.assertRaises(stillmap.InvalidArgumentError, vector.extend, bytes(8 * self.FULL))
        self.assertEqual(vector.address, shown)

    def test_a_commit_does_not_change_the_address(self):
        page = stillmap.device_info()["page_bytes"]
        buffer = stillmap.GrowableBuffer(page, reserve=page)
        address, limit = buffer.address, buffer.reserved
        self.assertRaises(stillmap.InvalidArgumentError, buffer.commit, limit, page)
        self.assertRaises(stillmap.InvalidArgumentError, buffer.commit, 2**64 - page, page)
        self.assertEqual((buffer.address, buffer.capacity), (address, page))


class Streams(TestCase):
    def test_of_every_library(self):
        class Core:
            def __cuda_stream__(self):
                return (0, 77)

        class Property:
            __cuda_stream__ = (0, 78)

        def having(**attributes):
            return type("Stream", (), attributes)()

        for given, handle in ((None, 0), (5, 5), (2**63, 2**63), (Core(), 77), (Property(), 78),
                              (having(cuda_stream=79), 79), (having(ptr=80), 80), (having(handle=81), 81),
                              (having(handle=ctypes.c_void_p(82)), 82), (having(handle=ctypes.c_void_p()), 0)):
            self.assertEqual(stillmap.stream_handle(given), handle)

    def test_what_is_none(self):
        def having(**attributes):
            return type("Stream", (), attributes)()

        for given in (1.5, True, "1", b"1", [], object(), having(ptr="x"), having(__cuda_stream__=(0,)),
                      having(__cuda_stream__=5)):
            self.assertRaises(TypeError, stillmap.stream_handle, given)
        for given in (-1, 2**64):
            self.assertRaises(OverflowError, stillmap.stream_handle, given)
        failing = type("S", (), {"__cuda_stream__": lambda self: 1 / 0})()
        self.assertRaises(ZeroDivisionError, stillmap.stream_handle, failing)


if __name__ == "__main__":
    unittest.main()
