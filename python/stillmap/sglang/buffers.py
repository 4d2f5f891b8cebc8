"""The memory of one pool's KV buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import stillmap


class _Pointer:
    """What torch.as_tensor() reads. The tensor keeps it, and it keeps the buffer; it does not count as a view."""

    def __init__(self, buffer: stillmap.GrowableBuffer, nbytes: int) -> None:
        self.buffer = buffer
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|i1", "data": (buffer.address, False), "version": 3}


class GrowingBuffers:
    """In place of SGLang's KvVmmBufferOwner, with the same interface, and release_beyond().

    One GrowableBuffer for each of SGLang's buffers (keys and values of each layer): the addresses of the whole buffer,
    and memory from its beginning. The first page always has memory: captured graphs write slot 0, where padded tokens go.

    Memory is unspecified when it is new, as SGLang's own is. Threads: that of the scheduler.
    """

    def __init__(self, *, device: str, device_id: int, store_dtype: torch.dtype, page_size: int, reserved_num_tokens: int,
                 buffer_descs: Sequence[Any]) -> None:
        self.device_id = int(device_id)
        self.page_size = int(page_size)
        self.tensors: list[torch.Tensor] = []
        self._reserved_num_tokens = int(reserved_num_tokens)
        self._descs = list(buffer_descs)
        self._buffers: list[stillmap.GrowableBuffer] = []
        torch.cuda.init()
        try:
            for desc in self._descs:
                nbytes = desc.reserved_span_bytes(store_dtype.itemsize)
                buffer = stillmap.GrowableBuffer(device=self.device_id, reserve=nbytes, tag="sglang.kv_cache")
                self._buffers.append(buffer)
                buffer.commit(0, buffer.page_bytes)  # PyTorch asks whose memory the address is
                raw = torch.as_tensor(_Pointer(buffer, nbytes), device=torch.device("cuda", self.device_id))
                self.tensors.append(raw.view(store_dtype).view(desc.shape))
            self.ensure_prefix(self.page_size)
        except BaseException:
            self.close()
            raise

    # ---- what SGLang calls ----

    def ensure_prefix(self, num_tokens: int) -> None:
        """The first slots of each buffer have memory: of all buffers, or nothing has changed and it raises."""
        self._ensure([d.prefix_span_bytes(num_tokens, self.page_size) for d in self._descs])

    def finalize(self, final_num_tokens: int) -> None:
        """The same, for so many slots and the padded page."""
        final = int(final_num_tokens)
        if not self.page_size <= final <= self._reserved_num_tokens:
            raise ValueError(f"stillmap.sglang: finalize: {final} tokens; it must be {self.page_size} to "
                             f"{self._reserved_num_tokens}, which have addresses")
        self._ensure([d.final_span_bytes(final, self.page_size) for d in self._descs])

    @property
    def backed_bytes(self) -> int:
        return sum(b.capacity for b in self._buffers)

    def close(self) -> None:
        self.tensors = []
        buffers, self._buffers, self._descs = self._buffers, [], []
        for buffer in buffers:
            buffer.close()
        stillmap.trim(device=self.device_id)

    # ---- what SGLang's own does not have ----

    def release_beyond(self, num_tokens: int) -> int:
        """Slots from `num_tokens` on need no memory: gives whole pages back to the device. Returns their bytes.

        Waits for the device's work first. If it raises, buffers have different lengths: usable_tokens is the shortest's,
        and the next call of either kind makes them equal. Cost: one unmap for each buffer.
        """
        before = self.backed_bytes
        try:
            for buffer, desc in zip(self._buffers, self._descs):
                keep = max(buffer.page_bytes, _round_up(desc.prefix_span_bytes(num_tokens, self.page_size), buffer))
                if buffer.capacity > keep:
                    buffer.decommit(keep, buffer.capacity - keep)
        finally:
            if self.backed_bytes != before:
                stillmap.trim(device=self.device_id)
        return before - self.backed_bytes

    @property
    def usable_tokens(self) -> int:
        """Slots that have memory in all buffers, with the padded page."""
        return min(min(b.capacity // d.row_bytes, d.shape[0]) * d.tokens_per_row
                   for b, d in zip(self._buffers, self._descs))

    @property
    def group_tokens(self) -> int:
        """Slots in one page of each buffer, the unit in which memory comes and goes; at least one row's."""
        return min(max(1, b.page_bytes // d.row_bytes) * d.tokens_per_row for b, d in zip(self._buffers, self._descs))

    @property
    def group_bytes(self) -> int:
        return sum(b.page_bytes for b in self._buffers)

    # ---- inside ----

    def _ensure(self, spans: Sequence[int]) -> None:
        if not self._buffers:
            raise stillmap.InvalidArgumentError("stillmap.sglang: ensure_prefix: the buffers are closed")
        for buffer, desc, span in zip(self._buffers, self._descs, spans):
            if span > buffer.reserved:
                raise ValueError(f"stillmap.sglang: ensure_prefix: buffer {desc.name!r} needs {span} bytes, and has "
                                 f"addresses for {buffer.reserved}")
        grown = []
        try:
            for buffer, span in zip(self._buffers, spans):
                have, want = buffer.capacity, _round_up(span, buffer)
                if want > have:
                    buffer.commit(have, want - have)
                    grown.append((buffer, have, want - have))
        except BaseException:
            for buffer, have, more in grown:
                buffer.decommit(have, more)
            stillmap.trim(device=self.device_id)
            raise


def _round_up(nbytes: int, buffer: stillmap.GrowableBuffer) -> int:
    return -(-nbytes // buffer.page_bytes) * buffer.page_bytes
