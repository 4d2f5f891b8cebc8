"""Options of the sleep mode backend, from vLLM's `additional_config`, and of the load format, from its
`model_loader_extra_config`."""

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
        made = cls(**_known(cls, given))
        if made.store not in ("pinned_host", "file"):
            raise ValueError(f"stillmap.vllm: store is {made.store!r}; it must be 'pinned_host' or 'file'")
        if made.directory is not None and made.store != "file":
            raise ValueError("stillmap.vllm: a directory is given, but store is not 'file'")
        return made


@dataclasses.dataclass(frozen=True)
class LoaderOptions:
    """How `--load-format stillmap` shares weights.

    holder: the address of a stillmap.PublicationHolder; None: the environment variable STILLMAP_HOLDER.
    name: what names of publications begin with; None: the model's. What the weights depend on follows it: the
        checkpoint, the configuration, the rank and the GPU, as a digest.
    load_format, extra: of the loader that loads where nothing is published yet, and its model_loader_extra_config.
    wait: seconds to wait for another process that loads.
    verify: whether to compare the contents with the publisher's digests.
    """

    holder: str | None = None
    name: str | None = None
    load_format: str = "auto"
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    wait: float = 1800.0
    verify: bool = False

    @classmethod
    def read(cls, given: object) -> LoaderOptions:
        """Raises ValueError for what is not an option, naming it."""
        made = cls(**_known(cls, given))
        if made.load_format == "stillmap":
            raise ValueError("stillmap.vllm: load_format is 'stillmap'; it must be the format that weights are loaded by")
        if not isinstance(made.extra, Mapping):
            raise ValueError(f"stillmap.vllm: extra is a {type(made.extra).__name__}; it must be a mapping")
        return made


def _known(options: type, given: object) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"stillmap.vllm: the options must be a mapping, not {type(given).__name__}")
    known = {field.name for field in dataclasses.fields(options)}
    for name in given:
        if name not in known:
            raise ValueError(f"stillmap.vllm: there is no option {name!r}; there are: {', '.join(sorted(known))}")
    return dict(given)
