"""A tensor that grows in place."""

from __future__ import annotations

from typing import Any

import torch

import stillmap

from . import _multiprocessing
from ._plugin import device_index


class GrowableTensor:
    """A tensor whose first dimension grows while `data_ptr()` stays: a KV cache, a replay buffer, a token log.

        log = GrowableTensor((0, 4096), dtype=torch.float16, device="cuda")
        log.append(rows)            # no copy of what is there
        log.tensor                  # a view of all rows; views taken earlier stay valid

    Growing maps pages at the end of a reserved range; it copies nothing, and moves nothing. `reserve` is the number
    of rows of address space (default: as many as the device has memory for); growing past it is refused, unless
    `relocate=True` lets the address change, and then BusyError is raised while a view lives. New rows are unspecified.
    Shrinking keeps the memory until shrink_to_fit(), which raises BusyError while a view lives.
    A call that fails changes nothing.
    Threads: externally synchronised. Streams: work on new rows is queued on the current stream.
    """

    def __init__(self, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32, device: Any = None,
                 reserve: int = 0, tag: str = "") -> None:
        if not shape or any(n < 0 for n in shape):
            raise ValueError(f"GrowableTensor: the shape is {shape}; it needs one dimension or more, none negative")
        self._row = tuple(shape[1:])
        self.dtype = dtype
        self._device = device_index(device)
        elements = 1
        for n in self._row:
            elements *= n
        self._row_bytes = elements * dtype.itemsize
        if self._row_bytes == 0:
            raise ValueError(f"GrowableTensor: a row of shape {self._row} has no elements")
        torch.cuda.init()
        _multiprocessing.install()
        self.buffer = stillmap.GrowableBuffer(device=self._device, reserve=reserve * self._row_bytes, tag=tag)
        self._rows = 0
        self.resize(shape[0])

    def __len__(self) -> int:
        return self._rows

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self._rows, *self._row))

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self._device)

    def data_ptr(self) -> int:
        return int(self.buffer.address)

    @property
    def tensor(self) -> torch.Tensor:
        """All rows. It shares the memory, keeps it, and counts as a view."""
        if self._rows == 0:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        whole = torch.from_dlpack(self.buffer)[:self._rows * self._row_bytes]
        return whole.view(self.dtype).view(self.shape)

    def resize(self, rows: int, *, relocate: bool = False) -> None:
        """Raises OutOfMemoryError; InvalidArgumentError (past `reserve` without relocate), BusyError (with it, while a
        view lives; or the tag is suspended)."""
        if rows < 0:
            raise ValueError(f"GrowableTensor.resize: {rows} rows")
        if rows > self._rows:
            self._check_awake()
        # Never smaller: the memory of rows that are gone stays, and views of them stay valid.
        nbytes = max(rows * self._row_bytes, self.buffer.nbytes)
        self.buffer.resize(nbytes, torch.cuda.current_stream(self._device), relocate=relocate)
        self._rows = rows

    def append(self, rows: torch.Tensor, *, relocate: bool = False) -> None:
        """Copies rows behind the last one, on the current stream. Raises as resize()."""
        if not isinstance(rows, torch.Tensor):
            raise TypeError(f"GrowableTensor.append: rows are a tensor, not a {type(rows).__name__}")
        if rows.dim() == 0 or tuple(rows.shape[1:]) != self._row:
            raise ValueError(f"GrowableTensor.append: the shape is {tuple(rows.shape)}; it must be (rows, "
                             f"{', '.join(map(str, self._row))})")
        before = self._rows
        self.resize(before + rows.shape[0], relocate=relocate)
        try:
            if rows.shape[0]:
                self.tensor[before:].copy_(rows, non_blocking=True)
        except BaseException:
            self._rows = before
            raise

    def shrink_to_fit(self, *, relocate: bool = False) -> None:
        """Gives the pages behind the last row back. Waits for the device. Raises BusyError while a view lives.

        relocate: needed on a device that cannot map pages (`buffer.in_place`), where the address changes.
        """
        self.buffer.resize(self._rows * self._row_bytes)
        self.buffer.shrink_to_fit(relocate=relocate)

    def _check_awake(self) -> None:
        # A copy into memory without pages is an illegal access, which CUDA does not forgive.
        tag = self.buffer.tag
        if tag and any(s["tag"] == tag for s in stillmap.suspended(self._device)):
            raise stillmap.BusyError(f"GrowableTensor: tag {tag!r} is suspended; resume it first")

    def __repr__(self) -> str:
        return f"GrowableTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"
