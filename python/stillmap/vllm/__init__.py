"""vLLM's sleep mode on Stillmap: `vllm serve MODEL --enable-sleep-mode --sleep-mode-backend stillmap`.

vLLM finds this package by its entry point of the group `vllm.general_plugins`; nothing has to be imported.
Options are given as `--additional-config '{"stillmap": {"store": "file", "directory": "/nvme"}}'`
(options.py). docs/vllm.md

Read in vLLM 0.33.0 (vllm/device_allocator/). Importing this module imports neither vLLM nor PyTorch.
"""

from __future__ import annotations

from .callbacks import Range, on_resume, on_suspend
from .options import Options

__all__ = ["Options", "Range", "on_resume", "on_suspend", "register"]

BACKEND = "stillmap"


def register() -> None:
    """Registers the backend with vLLM. Called by vLLM in each of its processes, perhaps more than once.

    Nothing changes for an engine that uses another backend: vLLM's own allocator serves it.
    """
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    from . import selection

    try:
        SleepModeBackendFactory.get_backend_class(BACKEND)
    except ValueError:  # it is not registered yet
        SleepModeBackendFactory.register_backend(BACKEND, "stillmap.vllm.backend", "StillmapBackend")
    selection.install()
