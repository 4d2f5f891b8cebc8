"""A tensor that grows in place."""

from __future__ import annotations

from typing import Any

import torch

import stillmap

from ._plugin import device_index
from ._state import _Memory


class GrowableTensor:
    """A tensor whose first dimension grows while `data_ptr()` stays: a KV cache, a replay buffer, a token log.

        log = GrowableTensor((0, 4096), dtype=torch.float16, device="cuda")
        log.append(rows)            # no copy of what is there
        log.tensor                  # a view of all rows; views taken earlier stay valid

    Growing maps pages at the end of a reserved range; it copies nothing, and moves nothing. `reserve` is the number
    of rows of address space (default: as many as the device has memory for). New rows are unspecified. Shrinking
    keeps the memory until shrink_to_fit(), after which views of the rows that are gone must not be used.
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
        """All rows. It shares the memory, and keeps it."""
        if self._rows == 0:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        whole = torch.as_tensor(_Memory(self.data_ptr(), self._rows * self._row_bytes, self.buffer), device=self.device)
        return whole.view(self.dtype).view(self.shape)

    def resize(self, rows: int) -> None:
        """Raises OutOfMemoryError; then nothing changed."""
        if rows < 0:
            raise ValueError(f"GrowableTensor.resize: {rows} rows")
        self.buffer.resize(rows * self._row_bytes, torch.cuda.current_stream(self._device))
        self._rows = rows

    def append(self, rows: torch.Tensor) -> None:
        """Copies rows behind the last one, on the current stream."""
        if tuple(rows.shape[1:]) != self._row:
            raise ValueError(f"GrowableTensor.append: rows of shape {tuple(rows.shape[1:])}; they must be {self._row}")
        before = self._rows
        self.resize(before + rows.shape[0])
        if rows.shape[0]:
            self.tensor[before:].copy_(rows, non_blocking=True)

    def shrink_to_fit(self) -> None:
        """Gives the pages behind the last row back. Waits for the device."""
        self.buffer.shrink_to_fit()

    def __repr__(self) -> str:
        return f"GrowableTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"
