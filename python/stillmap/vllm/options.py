"""Options of the sleep mode backend, from vLLM's `additional_config`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Options:
    """Where contents are kept while the engine sleeps.

    store: "pinned_host" (page-locked host memory, fastest) or "file" (an unnamed file in `directory`, with a
        checksum of each 64 KiB that is checked when the engine wakes up).
    directory: of the file; None: $TMPDIR, else /tmp. It needs as much space as the memory that sleeps.
    """

    store: str = "pinned_host"
    directory: str | None = None

    @classmethod
    def read(cls, given: object) -> Options:
        """Raises ValueError for what is not an option, naming it."""
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise ValueError(f"stillmap.vllm: the options must be a mapping, not {type(given).__name__}")
        known = {field.name for field in dataclasses.fields(cls)}
        options: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"stillmap.vllm: there is no option {name!r}; there are: {', '.join(sorted(known))}")
            options[name] = value
        made = cls(**options)
        if made.store not in ("pinned_host", "file"):
            raise ValueError(f"stillmap.vllm: store is {made.store!r}; it must be 'pinned_host' or 'file'")
        if made.directory is not None and made.store != "file":
            raise ValueError("stillmap.vllm: a directory is given, but store is not 'file'")
        return made
