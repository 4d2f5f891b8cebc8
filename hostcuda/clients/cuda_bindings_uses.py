"""Uses of cuda.bindings.driver, whose own tests are not on PyPI: devices, memory of all kinds, streams, events, graphs,
memory of another process, errors. Every byte that is copied is compared.
"""
import ctypes
import multiprocessing
import unittest

import numpy as np
from cuda.bindings import driver, nvml, runtime

SIZE = 1 << 16
PAGE = 2 << 20
HANDLE_SIZE = 64  # of CUipcMemHandle
OK = driver.CUresult.CUDA_SUCCESS


def call(function, *arguments):
    status, *values = getattr(driver, function)(*arguments)
    if status != OK:
        raise RuntimeError("%s: %s" % (function, status.name))
    return values[0] if len(values) == 1 else tuple(values)


def location(kind=driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, number=0):
    out = driver.CUmemLocation()
    out.type, out.id = kind, number
    return out


def pattern(seed):
    return np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)


class Uses(unittest.TestCase):
    def setUp(self):
        call("cuInit", 0)
        self.device = call("cuDeviceGet", 0)
        call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", self.device))
        self.stream = call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def contents(self, address):
        out = np.zeros(SIZE, dtype=np.uint8)
        call("cuMemcpyDtoHAsync", out.ctypes.data, address, SIZE, self.stream)
        call("cuStreamSynchronize", self.stream)
        return out

    def check(self, address):
        source = pattern(1)
        call("cuMemcpyHtoDAsync", address, source.ctypes.data, SIZE, self.stream)
        np.testing.assert_array_equal(self.contents(address), source)
        call("cuMemsetD32Async", address, 0x01020304, SIZE // 4, self.stream)
        self.assertEqual(set(self.contents(address).view(np.uint32)), {0x01020304})

    def assertRefused(self, status, function, *arguments):
        self.assertEqual(getattr(driver, function)(*arguments)[0].name, "CUDA_ERROR_" + status)


class Devices(Uses):
    def test_attributes(self):
        for attribute in driver.CUdevice_attribute:
            if not attribute.name.endswith(("_MAX", "_INVALID")):
                self.assertIn(driver.cuDeviceGetAttribute(attribute, self.device)[0].name,
                              ("CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE"), attribute)
        self.assertEqual(call("cuDeviceGetCount"), 1)
        self.assertTrue(call("cuDeviceGetName", 64, self.device).rstrip(b"\0"))

    def test_nvml(self):
        nvml.init_v2()
        self.assertEqual(nvml.device_get_count_v2(), 1)
        self.assertGreater(nvml.device_get_memory_info_v2(nvml.device_get_handle_by_index_v2(0)).total, 1 << 30)

    def test_the_runtime_finds_a_device(self):
        self.assertEqual(runtime.cudaGetDeviceCount(), (runtime.cudaError_t.cudaSuccess, 1))


class Memory(Uses):
    def test_allocations(self):
        for function, arguments in (("cuMemAlloc", (SIZE,)), ("cuMemAllocManaged", (SIZE, 1))):
            address = call(function, *arguments)
            self.check(address)
            begin, size = call("cuMemGetAddressRange", address)
            self.assertEqual((int(begin), size), (int(address), SIZE))
            call("cuMemFree", address)

    def test_pools(self):
        props = driver.CUmemPoolProps()
        props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location = location()
        pool = call("cuMemPoolCreate", props)
        self.check(call("cuMemAllocFromPoolAsync", SIZE, pool, self.stream))
        address = call("cuMemAllocAsync", SIZE, self.stream)
        self.check(address)
        call("cuMemFreeAsync", address, self.stream)
        used = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
        self.assertGreaterEqual(int(call("cuMemPoolGetAttribute", pool, used)), SIZE)

    def test_mapped_pages(self):
        prop = driver.CUmemAllocationProp()
        prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location = location()
        access = driver.CUmemAccessDesc()
        access.location = location()
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        handle = call("cuMemCreate", PAGE, prop, 0)
        address = call("cuMemAddressReserve", 2 * PAGE, 0, 0, 0)
        for part in (0, PAGE):  # the same page twice
            call("cuMemMap", int(address) + part, PAGE, 0, handle, 0)
        call("cuMemSetAccess", address, 2 * PAGE, [access], 1)
        self.check(address)
        np.testing.assert_array_equal(self.contents(int(address) + PAGE), self.contents(address))
        call("cuMemUnmap", address, 2 * PAGE)
        call("cuMemRelease", handle)
        call("cuMemAddressFree", address, 2 * PAGE)

    def test_pinned_memory(self):
        address = call("cuMemHostAlloc", SIZE, 0)
        self.check(call("cuMemHostGetDevicePointer", address, 0))
        call("cuMemFreeHost", address)
        kept = np.zeros(SIZE, dtype=np.uint8)
        call("cuMemHostRegister", kept.ctypes.data, SIZE, 0)
        self.check(call("cuMemHostGetDevicePointer", kept.ctypes.data, 0))
        call("cuMemHostUnregister", kept.ctypes.data)

    def test_errors(self):
        self.assertRefused("OUT_OF_MEMORY", "cuMemAlloc", 1 << 50)
        self.assertRefused("INVALID_VALUE", "cuMemFree", 12345)
        self.assertEqual(call("cuGetErrorName", driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY), b"CUDA_ERROR_OUT_OF_MEMORY")


class Order(Uses):
    def test_events_and_streams(self):
        first, second = (call("cuEventCreate", 0) for _ in range(2))
        address = call("cuMemAlloc", SIZE)
        call("cuEventRecord", first, self.stream)
        self.check(address)
        call("cuEventRecord", second, self.stream)
        other = call("cuStreamCreateWithPriority", 1, call("cuCtxGetStreamPriorityRange")[1])
        call("cuStreamWaitEvent", other, second, 0)
        call("cuStreamSynchronize", other)
        self.assertEqual(driver.cuEventQuery(second)[0], OK)
        self.assertGreaterEqual(call("cuEventElapsedTime", first, second), 0)


class Graphs(Uses):
    def test_capture(self):
        address, source = call("cuMemAlloc", SIZE), pattern(2)
        call("cuStreamBeginCapture", self.stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        call("cuMemcpyHtoDAsync", address, source.ctypes.data, SIZE, self.stream)
        graph = call("cuStreamEndCapture", self.stream)
        execute = call("cuGraphInstantiate", graph, 0)
        for seed in (2, 3):
            source[:] = pattern(seed)
            call("cuGraphLaunch", execute, self.stream)
            np.testing.assert_array_equal(self.contents(address), pattern(seed))

    def test_nodes(self):
        address, graph = call("cuMemAlloc", SIZE), call("cuGraphCreate", 0)
        nodes = []
        for value in (5, 6):  # the second depends on the first
            params = driver.CUDA_MEMSET_NODE_PARAMS()
            params.dst, params.value, params.elementSize, params.width, params.height = address, value, 1, SIZE, 1
            nodes.append(call("cuGraphAddMemsetNode", graph, nodes[-1:], len(nodes[-1:]), params,
                              call("cuCtxGetCurrent")))
        self.assertEqual(call("cuGraphGetNodes", graph)[1], 2)
        call("cuGraphLaunch", call("cuGraphInstantiate", graph, 0), self.stream)
        self.assertEqual(set(self.contents(address)), {6})


def fill_in_another_process(handle, value):
    uses = Uses()
    uses.setUp()
    theirs = driver.CUipcMemHandle()
    ctypes.memmove(theirs.getPtr(), handle, HANDLE_SIZE)
    address = call("cuIpcOpenMemHandle", theirs, driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    call("cuMemsetD8", address, value, SIZE)
    call("cuIpcCloseMemHandle", address)


class Processes(Uses):
    def test_memory_is_shared(self):
        address = call("cuMemAlloc", SIZE)
        own = call("cuIpcGetMemHandle", address)  # the object has the bytes: it must live while they are read
        handle = ctypes.string_at(own.getPtr(), HANDLE_SIZE)
        child = multiprocessing.get_context("spawn").Process(target=fill_in_another_process, args=(handle, 44))
        child.start()
        child.join()
        self.assertEqual(child.exitcode, 0)
        self.assertEqual(set(self.contents(address)), {44})


if __name__ == "__main__":
    unittest.main()
