"""The pytest plug-in: a test marked `hostcuda` runs on a machine of its own, started afresh.

A process has one driver, which stays until its end. The plug-in therefore loads hostcuda before pytest reads any
conftest.py or test, and before a marked test it replaces the machine, not the driver.
"""
import gc
import os
import sys

import pytest

import stillmap_hostcuda
from stillmap_hostcuda.launcher import Failure

# The device files of NVIDIA's driver, on Linux and in WSL 2.
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
MARKER = ("hostcuda(profile=None, *, kernels=None, config=None): run the test on a new machine of hostcuda, "
          "for example hostcuda('multi:2', config='memory=4G')")


def pytest_addoption(parser):
    parser.getgroup("hostcuda").addoption(
        "--hostcuda", choices=("auto", "on", "off"),
        help="load hostcuda, a CUDA driver on host memory: 'auto' (default) unless the machine has an NVIDIA driver")
    parser.addini("hostcuda", "default of --hostcuda", default="auto")


def pytest_configure(config):
    config.addinivalue_line("markers", MARKER)
    prepare(config)  # Here only if a conftest.py names the plug-in, which is then not installed.


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    prepare(early_config)


def prepare(config):
    """Loads hostcuda, or keeps the reason why marked tests are skipped."""
    if hasattr(config, "hostcuda_reason"):
        return
    asked = getattr(config.known_args_namespace, "hostcuda", None) or getattr(config.option, "hostcuda", None)
    wanted = asked or config.getini("hostcuda")
    if wanted not in ("auto", "on", "off"):
        raise pytest.UsageError("hostcuda = %s: must be auto, on or off" % wanted)
    config.hostcuda_reason = None
    if wanted == "off":
        config.hostcuda_reason = "hostcuda is off"
    elif wanted == "auto" and any(os.path.exists(name) for name in GPU_FILES):
        config.hostcuda_reason = "this machine has an NVIDIA driver; --hostcuda=on runs the test on hostcuda"
    else:
        try:
            stillmap_hostcuda.load()
        except (Failure, OSError) as error:
            raise pytest.UsageError("cannot load hostcuda: %s" % error) from error


def settings_of(mark):
    def hostcuda(profile=None, *, kernels=None, config=None):
        return stillmap_hostcuda.settings(profile, kernels, config)

    return hostcuda(*mark.args, **mark.kwargs)


def holds_old_memory():
    """Whether PyTorch has blocks of the machine in its cache. It would write to their addresses on the next machine,
    where they are memory of the process."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def start_machine(mark):
    """Starts the machine of a marked test. Returns why it cannot, or None."""
    if holds_old_memory():
        return ("PyTorch has memory on the machine of an earlier test of this process; "
                "run pytest by `hostcuda run` without the marker, or one such test in a process")
    gc.collect()  # What the last test has left frees its memory on the machine that it belongs to.
    try:
        stillmap_hostcuda.reset(settings_of(mark))
    except (Failure, TypeError, ValueError) as error:
        return str(error)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    mark = item.get_closest_marker("hostcuda")
    if mark is None:
        return
    if item.config.hostcuda_reason:
        pytest.skip(item.config.hostcuda_reason)
    problem = start_machine(mark)
    if problem is not None:
        pytest.fail("@pytest.mark.hostcuda: %s" % problem, pytrace=False)


@pytest.fixture
def hostcuda(request):
    """The driver of a marked test as a ctypes.CDLL, for the functions of hostcuda/hostcuda.h."""
    if request.node.get_closest_marker("hostcuda") is None:
        pytest.fail("the fixture hostcuda needs @pytest.mark.hostcuda on the test", pytrace=False)
    return stillmap_hostcuda.load()
