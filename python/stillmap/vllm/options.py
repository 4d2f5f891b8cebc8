"""Options of the sleep mode backend and of the KV cache, from vLLM's `additional_config`, and of the load format, from
its `model_loader_extra_config`."""

from __future__ import annotations

import dataclasses
import re
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
        if isinstance(given, Mapping):
            given = {name: value for name, value in given.items() if not str(name).startswith(_CACHE)}
        made = cls(**_known(cls, given))
        if made.store not in ("pinned_host", "file"):
            raise ValueError(f"stillmap.vllm: store is {made.store!r}; it must be 'pinned_host' or 'file'")
        if made.directory is not None and made.store != "file":
            raise ValueError("stillmap.vllm: a directory is given, but store is not 'file'")
        return made


@dataclasses.dataclass(frozen=True)
class CacheOptions:
    """How the KV cache follows the load. Sizes are bytes, or a number with K, M, G or T: "4G".

    kv_cache: "grow".
    kv_cached: how much of the prefix cache is kept that no request uses; None: an eighth of the cache.
    kv_spare: memory that is kept for new blocks, so that a load that rises and falls a little maps nothing.
    """

    kv_cache: str = "grow"
    kv_cached: int | None = None
    kv_spare: int = 64 << 20

    @classmethod
    def read(cls, given: object) -> CacheOptions | None:
        """None where `kv_cache` is not given. Raises ValueError for what is not an option, naming it."""
        if not isinstance(given, Mapping):
            return None  # Options.read() says what is wrong with it
        named = {name: value for name, value in given.items() if str(name).startswith(_CACHE)}
        if not named:
            return None
        options = _known(cls, named)
        if options.get("kv_cache") != "grow":
            raise ValueError(f"stillmap.vllm: kv_cache is {options.get('kv_cache')!r}; it must be 'grow'")
        return cls("grow", *(_bytes(name, options.get(name, default))
                             for name, default in (("kv_cached", cls.kv_cached), ("kv_spare", cls.kv_spare))))


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


_CACHE = "kv_"


def _bytes(name: str, given: object) -> Any:
    """None stays None."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
        return given
    size = re.fullmatch(r"(\d+)([KMGT]?)", given) if isinstance(given, str) else None
    if size is None:
        raise ValueError(f"stillmap.vllm: {name} is {given!r}; it must be bytes, or a number with K, M, G or T")
    return int(size[1]) << 10 * " KMGT".index(size[2] or " ")


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
