"""Marked tests that use the driver by ctypes only. Not found by unittest or by name: hostcuda/python/wheel.sh runs it."""
import ctypes
import sys
from types import SimpleNamespace

import pytest
from stillmap_hostcuda import pytest_plugin


def driver():
    return ctypes.CDLL("libcuda.so.1")  # by name, as every program loads it


def check(status):
    assert status == 0


def devices():
    count = ctypes.c_int()
    check(driver().cuInit(0))
    check(driver().cuDeviceGetCount(ctypes.byref(count)))
    return count.value


def allocate(size):
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    check(driver().cuInit(0))
    check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(driver().cuCtxSetCurrent(context))
    return driver().cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size))


@pytest.mark.hostcuda("multi:2")
def test_has_the_devices_of_its_profile():
    assert devices() == 2


@pytest.mark.hostcuda
def test_has_the_default_machine():
    assert devices() == 1


@pytest.mark.hostcuda(config="memory=64M")
@pytest.mark.parametrize("turn", range(3))
def test_nobody_uses_its_memory(turn):
    check(allocate(48 << 20))
    assert allocate(48 << 20) == 2  # CUDA_ERROR_OUT_OF_MEMORY


@pytest.mark.hostcuda("a100")
def test_fails_a_call(hostcuda):
    check(hostcuda.hostcuda_fail(b"cuMemAlloc", ctypes.c_uint64(1), 2))
    assert allocate(4096) == 2
    check(allocate(4096))


@pytest.mark.hostcuda("multi:2")
def test_finds_nvml():
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    count = ctypes.c_uint()
    check(nvml.nvmlInit_v2())
    check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
    check(nvml.nvmlShutdown())
    assert count.value == 2


@pytest.mark.hostcuda("multi:2")
@pytest.mark.parametrize("used", (True, False))
def test_keeps_the_machine_that_pytorch_has_memory_on(monkeypatch, used):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: used)))
    problem = pytest_plugin.start_machine(pytest.mark.hostcuda("a100").mark)
    assert problem is None or "PyTorch has memory" in problem
    assert devices() == (2 if used else 1)
