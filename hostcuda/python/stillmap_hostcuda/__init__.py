"""hostcuda, a CUDA driver on host memory, for tests on machines without a GPU."""
import ctypes

from .launcher import DRIVER, RUNTIMES, libraries, settings

__all__ = ["libraries", "load", "reset", "settings"]

_NVML = "libnvidia-ml.so.1"
_driver = None


def load():
    """Loads hostcuda into this process, and returns its driver as a ctypes.CDLL.

    From then on whatever loads libcuda.so.1, libnvidia-ml.so.1 or libcudart.so by name gets hostcuda's. Call it before
    such a library is loaded; a driver that is loaded already stays.
    """
    global _driver
    if _driver is None:
        folder = libraries()
        for name in (DRIVER, _NVML, *RUNTIMES):
            if (folder / name).exists():
                library = ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
                _driver = _driver or library
    return _driver


def reset(config=""):
    """Discards the machine of this process with all its memory, and starts that of `config`, before cuInit.

    `config` has the syntax of the environment variable HOSTCUDA, whose value is the default. No other thread may be in
    the driver, and what a library keeps of the old machine is invalid.
    """
    if load().hostcuda_reset(config.encode()) != 0:
        raise ValueError("hostcuda_reset: invalid settings '%s'; the table of settings is in hostcuda's README" % config)
