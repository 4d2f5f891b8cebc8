"""How SGLang's KV cache follows the load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_VARIABLE = "STILLMAP_SGLANG_"


@dataclass(frozen=True)
class Options:
    """cached_tokens: how much of the radix cache is kept that no request uses; None: an eighth of the slots."""

    cached_tokens: int | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Options | None:
        """None where STILLMAP_SGLANG_KV_CACHE is not set. Raises ValueError for what is not an option, naming it."""
        mode = environment.get(_VARIABLE + "KV_CACHE", "")
        if not mode:
            return None
        if mode != "grow":
            raise ValueError(f"stillmap.sglang: {_VARIABLE}KV_CACHE is {mode!r}; it must be 'grow'")
        cached = environment.get(_VARIABLE + "KV_CACHED", "")
        if cached and not (cached.isascii() and cached.isdigit()):
            raise ValueError(f"stillmap.sglang: {_VARIABLE}KV_CACHED is {cached!r}; it must be a number of tokens")
        return cls(int(cached) if cached else None)
