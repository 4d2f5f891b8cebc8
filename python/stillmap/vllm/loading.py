"""The load format `stillmap`, registered with vLLM without importing its loaders before it uses them."""

from __future__ import annotations


def install() -> None:
    """Idempotent. Does nothing with a vLLM that has no weights of other processes (before 0.33)."""
    from . import BACKEND

    try:
        from vllm.model_executor import model_loader

        from .loader import StillmapLoader
    except ImportError:
        return
    if getattr(model_loader, "_LOAD_FORMAT_TO_MODEL_LOADER", {}).get(BACKEND) is not StillmapLoader:
        model_loader.register_model_loader(BACKEND)(StillmapLoader)
