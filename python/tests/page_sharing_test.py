"""Pages that pass to another process as file descriptors: the native part of torch.multiprocessing's CUDA tensors."""

import unittest

from support import TestCase, device

HEAP = """
import ctypes, os, stillmap, subprocess, sys, time
from stillmap import _native
from support import driver, MiB
def pool(tag, exportable):
    addresses = _native._torch_pool(tag, None, None, None, None, exportable)
    kinds = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p), (None, ctypes.c_void_p, ctypes.c_ssize_t,
                                                                                ctypes.c_int, ctypes.c_void_p)
    return [ctypes.CFUNCTYPE(*kind)(address) for kind, address in zip(kinds, addresses)]
allocate, free = pool("kv", True)
def raised(kind, call, *texts):
    try:
        call()
    except kind as e:
        assert all(text in str(e) for text in texts), e
        return
    raise AssertionError("nothing was raised")
def descriptors():
    return len(os.listdir("/proc/self/fd"))
def descriptors_are(number):  # soon: hostcuda closes files in its own time
    until = time.monotonic() + 10
    while descriptors() != number and time.monotonic() < until:
        time.sleep(0.005)
    return descriptors() == number
"""
RECEIVER = """
import stillmap, sys
from stillmap import _native
from support import driver
page, offset, nbytes, uuid, *fds = sys.argv[1:]
pages = _native._import_pages(_native._device_of_uuid(bytes.fromhex(uuid)), int(page), len(fds))
for fd in fds:
    pages.add(int(fd))
pages.map()
at = pages.address + int(offset)
assert driver().read(at, 5) == b"begin" and driver().read(at + int(nbytes) - 3, 3) == b"end"
driver().write(at, b"BEGIN")
pages.close()
pages.close()
assert stillmap.stats()["mapped_bytes"] == 0
"""


@unittest.skipUnless(device()["vmm"] and device()["posix_fd_export"], "the device exports no file descriptors")
class Pages(TestCase):
    def test_another_process_maps_the_memory(self):
        self.run_python(HEAP + f"RECEIVER = {RECEIVER!r}" + """
first = allocate(1000, 0, None)
block = allocate(5 * MiB + 512, 0, None)
driver().write(block, b"begin")
driver().write(block + 5 * MiB, b"end")
before = descriptors()
pages = _native._export_pages(0, block, 5 * MiB + 3)
assert pages.tag == "kv" and pages.offset == block % pages.page_bytes and len(pages.ids) == 8 * pages.count
fds = pages.fds(0, 128)
assert len(fds) == pages.count and descriptors() == before + len(fds)
assert [len(more := pages.fds(i, 1)) and os.close(more[0]) for i in range(pages.count)] == [None] * pages.count
subprocess.run([sys.executable, "-c", RECEIVER, *map(str, (pages.page_bytes, pages.offset, 5 * MiB + 3, pages.uuid.hex(),
                                                          *fds))], pass_fds=fds, check=True)
for fd in fds:
    os.close(fd)
assert driver().read(block, 5) == b"BEGIN"
assert descriptors_are(before), (descriptors(), before)
""")

    def test_what_is_refused(self):
        self.run_python(HEAP + """
block = allocate(5 * MiB, 0, None)
assert _native._export_pages(0, 0x1000, 10) is None
other = pool("closed", False)[0](100, 0, None)
raised(stillmap.NotSupportedError, lambda: _native._export_pages(0, other, 100), "exportable=True")
with stillmap.GrowableBuffer(4096, reserve=64 * MiB) as buffer:
    raised(stillmap.NotSupportedError, lambda: _native._export_pages(0, buffer.address, 10), "exportable=True")
pages = _native._export_pages(0, block, 5 * MiB)
raised(stillmap.InvalidArgumentError, lambda: pages.fds(pages.count, 1), "no such page")
raised(stillmap.BusyError, lambda: stillmap.suspend("kv"), "other processes have tensors in it", "tag kv")
# A range that ends where nothing is mapped.
raised(stillmap.InvalidArgumentError, lambda: _native._export_pages(0, block, 1 << 40), "not mapped")
fds = pages.fds(0, 2)
imported = _native._import_pages(0, pages.page_bytes, 2)
raised(stillmap.InvalidArgumentError, imported.map, "pages are missing")
imported.add(fds[0])
with open("/dev/null") as wrong:
    raised(stillmap.Error, lambda: imported.add(wrong.fileno()))
raised(stillmap.InvalidArgumentError, imported.map, "pages are missing")
imported.add(fds[1])
raised(stillmap.InvalidArgumentError, lambda: imported.add(fds[1]), "more pages")
imported.map()
raised(stillmap.InvalidArgumentError, imported.map, "mapped already")
raised(stillmap.NotSupportedError, lambda: _native._export_pages(0, imported.address, 10), "another process's")
raised(stillmap.InvalidArgumentError, lambda: imported.dlpack(10, 2 * pages.page_bytes, ""), "does not lie")
raised(stillmap.InvalidArgumentError, lambda: _native._import_pages(0, pages.page_bytes, 1 << 60), "not possible")
del imported
assert _native._device_of_uuid(b"0" * 16) is None and _native._device_of_uuid(b"") is None
for fd in fds:
    os.close(fd)
del pages
stillmap.suspend("kv")
raised(stillmap.BusyError, lambda: _native._export_pages(0, block, 10), "suspended")
stillmap.resume("kv")
assert _native._export_pages(0, block, 10).count == 1
""")

    def test_a_capture_is_not_waited_for(self):
        self.run_python(HEAP + """
block = allocate(MiB, 0, None)
pages = _native._export_pages(0, block, MiB)
imported = _native._import_pages(0, pages.page_bytes, 1)
fds = pages.fds(0, 1)
imported.add(fds[0])
os.close(fds[0])
imported.map()
library = driver().library
stream = ctypes.c_void_p()
driver().enter()
driver().call("cuStreamCreate", ctypes.byref(stream), 0)  # a blocking one
driver().call("cuStreamBeginCapture_v2", stream, 2)
raised(stillmap.BusyError, imported.close, "captures a graph")
raised(stillmap.BusyError, lambda: _native._wait_idle(0), "captures a graph")
graph = ctypes.c_void_p()
driver().call("cuStreamEndCapture", stream, ctypes.byref(graph))
_native._wait_idle(0)
imported.close()
""")


if __name__ == "__main__":
    unittest.main()
