"""Run by `hostcuda run --profile multi:2`: finds the driver and NVML by name, and memory has bytes."""
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
nvml = ctypes.CDLL("libnvidia-ml.so.1")


def check(status):
    assert status == 0, status


count, management_count = ctypes.c_int(), ctypes.c_uint()
check(nvml.nvmlInit_v2())
check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(management_count)))
check(cuda.cuInit(0))
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
assert count.value == management_count.value == 2, (count, management_count)

context, at, word = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4096)))
check(cuda.cuMemsetD32_v2(at, ctypes.c_uint32(7), ctypes.c_size_t(1024)))
check(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), ctypes.c_uint64(at.value + 4092), ctypes.c_size_t(4)))
assert word.value == 7, word
