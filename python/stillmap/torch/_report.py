"""What was held, and what PyTorch's own allocators would have held."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

import stillmap

from ._plugin import device_index

# The package's models of PyTorch's allocators. docs/traces.md
_ALLOCATORS = {"stillmap": "Stillmap", "segments": "PyTorch, native",
               "segments-expanding": "PyTorch, expandable segments"}


@dataclass(frozen=True)
class Report:
    """Peaks in bytes. It prints, and draws itself in a notebook, as a table."""

    live: int
    """The most that the program had allocated at one moment. No allocator can hold less."""
    held: dict[str, int | None]
    """By allocator, the most memory of the device that it held at one moment; None: the replay ran out of memory."""

    def saved(self, allocator: str = "segments") -> int | None:
        """Bytes by which Stillmap's peak is below another allocator's; negative where it is above."""
        own, other = self.held["stillmap"], self.held[allocator]
        return None if own is None or other is None else other - own

    def __str__(self) -> str:
        lines = [f"{'peak allocated by the program':44}{_mib(self.live)}"]
        for key, title in _ALLOCATORS.items():
            saved = self.saved(key)
            note = "" if key == "stillmap" or saved is None else f"   Stillmap holds {_mib(abs(saved)).strip()} " + (
                "less" if saved >= 0 else "more")
            lines.append(f"{'peak held by ' + title:44}{_mib(self.held[key])}{note}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [("Allocated by the program", self.live)] + [(t, self.held[k]) for k, t in _ALLOCATORS.items()]
        cells = "".join(f"<tr><td>{t}</td><td style='text-align:right'>{_mib(n)}</td></tr>" for t, n in rows)
        return f"<table><tr><th>Peak</th><th></th></tr>{cells}</table>"


def report(recording: Any, *, device: Any = None) -> Report:
    """Replays recorded requests on Stillmap and on models of PyTorch's native allocator and expandable segments.

        recording = stillmap.record("run.trace")     # before use()
        stillmap.torch.use()
        ...
        print(stillmap.torch.report(recording))

    recording: a stillmap.Recording, a trace, or a pickle of torch.cuda.memory._dump_snapshot(), for programs that
    run on PyTorch's native allocator. The replay needs, on the device, as much free memory as the largest of the
    peaks: call it at the end, or in another process. It takes about a microsecond to a hundred a request, and
    changes nothing in PyTorch but to empty its cache. Raises OSError and stillmap.Error (not a trace).
    """
    index = device_index(device)
    if isinstance(recording, stillmap.Recording):
        recording.flush()
        path = recording.path
    else:
        path = os.fspath(recording)
    torch.cuda.synchronize(index)
    torch.cuda.empty_cache()
    done = {name: stillmap.replay(path, name, device=index) for name in _ALLOCATORS}
    return Report(max(r["peak_live_bytes"] for r in done.values()),
                  {name: None if r["oom"] else r["peak_committed_bytes"] for name, r in done.items()})


def _mib(value: int | None) -> str:
    return "    out of memory" if value is None else f"{value / (1 << 20):13,.1f} MiB"
