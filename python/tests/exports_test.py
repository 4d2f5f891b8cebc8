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
