"""vLLM's sleep mode on Stillmap: `vllm serve MODEL --enable-sleep-mode --sleep-mode-backend stillmap`; weights that
all engines of a machine have once: `vllm serve MODEL --load-format stillmap`; a KV cache that grows and shrinks with
the load: `--additional-config '{"stillmap": {"kv_cache": "grow"}}'`.

vLLM finds this package by its entry point of the group `vllm.general_plugins`; nothing has to be imported.
Options of sleep mode are given as `--additional-config '{"stillmap": {"store": "file", "directory": "/nvme"}}'`, those
of the load format as `--model-loader-extra-config '{"holder": "/run/weights"}'` (options.py). docs/vllm.md

Read in vLLM 0.33.0 (vllm/device_allocator/, vllm/model_executor/model_loader/). Importing this module imports neither
vLLM nor PyTorch.
"""

from __future__ import annotations

from .callbacks import Range, on_resume, on_suspend
from .options import CacheOptions, LoaderOptions, Options

__all__ = ["CacheOptions", "LoaderOptions", "Options", "Range", "on_resume", "on_suspend", "register"]

BACKEND = "stillmap"


def register() -> None:
    """Registers the backend and the load format with vLLM. Called by vLLM in each of its processes, perhaps more than once.

    Nothing changes for an engine that uses others: vLLM's own allocator and loaders serve it.
    """
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    from . import kv_cache, loading, selection

    try:
        SleepModeBackendFactory.get_backend_class(BACKEND)
    except ValueError:  # it is not registered yet
        SleepModeBackendFactory.register_backend(BACKEND, "stillmap.vllm.backend", "StillmapBackend")
    selection.install()
    loading.install()
    kv_cache.install()
