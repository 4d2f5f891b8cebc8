"""The C API from Python's ctypes: no compiler, no header, no package. What is done here, any FFI can do.

    python3 examples/c_api_ctypes.py [PATH/libstillmap_c.so.0]
"""
import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

stillmap = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libstillmap_c.so.0")


# [struct]
class Sized(Structure):
    """A struct of the C API: its first member is its size, and zeros are defaults."""

    def __init__(self, **members):
        super().__init__(ctypes.sizeof(self), **members)


class BufferOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("reserve_bytes", c_size_t), ("tag", c_char_p), ("hint", c_uint64),
                ("peer_devices", POINTER(c_int)), ("peer_device_count", c_size_t), ("map_ahead_bytes", c_size_t),
                ("exportable", c_uint32), ("reserved", c_uint32)]
# [/struct]


class Error(Sized):
    _fields_ = [("struct_size", c_size_t), ("status", c_int32), ("unit", c_int32), ("driver_code", c_int32),
                ("system_code", c_int32), ("value", c_uint64), ("limit", c_uint64), ("function", c_char_p),
                ("operation", c_char_p), ("reason", c_char_p), ("subject", c_char_p), ("message", c_char_p),
                ("advice", c_char_p)]


class Suspended(Sized):
    _fields_ = [("struct_size", c_size_t), ("tags", c_uint64), ("places", c_uint64), ("bytes", c_uint64),
                ("released_bytes", c_uint64)]


class StillmapError(Exception):
    pass


def declare(name, *arguments, returns=c_int):
    """A function of the library, which raises an exception where it returns a status that is not 0."""
    function = getattr(stillmap, "stillmap_" + name)
    function.argtypes, function.restype = arguments, returns

    def call(*values):
        status = function(*values)
        if returns is c_int and status != 0:
            error = Error()
            stillmap.stillmap_error_last(byref(error))
            raise StillmapError("%s\nadvice: %s" % (error.message.decode(), error.advice.decode()))
        return status
    return call


device_open = declare("device_open", c_int, POINTER(c_void_p))
device_close = declare("device_close", c_void_p)
device_get_tags = declare("device_get_tags", c_void_p, POINTER(c_void_p))
string_free = declare("string_free", c_void_p, returns=None)
buffer_create = declare("buffer_create", c_void_p, POINTER(BufferOptions), POINTER(c_void_p))
buffer_resize = declare("buffer_resize", c_void_p, c_size_t)
buffer_address = declare("buffer_address", c_void_p, returns=c_void_p)
buffer_copy_from_host = declare("buffer_copy_from_host", c_void_p, c_size_t, c_char_p, c_size_t, c_void_p)
buffer_copy_to_host = declare("buffer_copy_to_host", c_void_p, c_size_t, c_char_p, c_size_t, c_void_p)
buffer_destroy = declare("buffer_destroy", c_void_p)
suspender_create = declare("suspender_create", c_void_p, c_void_p, POINTER(c_void_p))
suspender_suspend = declare("suspender_suspend", c_void_p, c_char_p, c_void_p, POINTER(Suspended))
suspender_resume = declare("suspender_resume", c_void_p, c_char_p, POINTER(Suspended))
suspender_destroy = declare("suspender_destroy", c_void_p)


def main():
    device, buffer, suspender, json = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    device_open(0, byref(device))
    buffer_create(device, BufferOptions(reserve_bytes=64 << 20, tag=b"cache"), byref(buffer))
    buffer_resize(buffer, 2 << 20)
    address = buffer_address(buffer)
    buffer_copy_from_host(buffer, 0, b"contents", 8, None)
    buffer_resize(buffer, 32 << 20)
    device_get_tags(device, byref(json))
    print(ctypes.string_at(json).decode())
    string_free(json)
    try:
        buffer_resize(buffer, 1 << 60)
        raise SystemExit("a buffer of an exbibyte")
    except StillmapError as error:
        print("refused:", error)
    back = ctypes.create_string_buffer(8)
    suspender_create(device, None, byref(suspender))
    try:
        done = Suspended()
        suspender_suspend(suspender, b"cache", None, byref(done))
        print("suspended: %d MiB released" % (done.released_bytes >> 20))
        suspender_resume(suspender, b"cache", None)
        assert buffer_address(buffer) == address
    except StillmapError as error:  # a device that cannot map pages
        print("refused:", error)
    buffer_copy_to_host(buffer, 0, back, 8, None)
    assert back.raw == b"contents"
    suspender_destroy(suspender)
    buffer_destroy(buffer)
    device_close(device)
    print("ok")


main()
