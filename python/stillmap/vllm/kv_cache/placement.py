"""Where the bytes of a block lie in vLLM's KV cache, and where they lie in an arena."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

_OPERATION = "stillmap.vllm: kv_cache"


@dataclasses.dataclass(frozen=True)
class Placement:
    """A cache of `regions` parts of equal size. Each has `block_bytes` of every block, one block after the other.

    With a layout of vLLM that has the block outermost (BLNHC, BLHNC, BHLNC) there is one region, and a page of 2 MiB
    has bytes of the fewest blocks. With one that has the layer outermost (LBNHC, LBHNC) each layer is a region.
    """

    blocks: int
    regions: int
    block_bytes: int  # in one region
    is_block_outermost: bool

    @property
    def bytes_per_block(self) -> int:
        return self.regions * self.block_bytes

    @classmethod
    def of(cls, config: Any) -> Placement:
        """Raises ValueError for what an arena cannot hold."""
        from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, iter_layer_specs
        from vllm.v1.kv_cache_layout import KVCacheLayout

        for group in config.kv_cache_groups:
            for spec in iter_layer_specs(group.kv_cache_spec):
                # Others free blocks that kernels of the next step may still read, or keep what is no block.
                if type(spec) not in (FullAttentionSpec, MLAAttentionSpec):
                    raise ValueError(f"{_OPERATION}: the model has layers of {type(spec).__name__}; the cache grows for "
                                     "models with full attention in all layers only: leave out the option")
        tensors = config.kv_cache_tensors
        if not tensors or any(t.host_resident for t in tensors):
            raise ValueError(f"{_OPERATION}: the model has no KV cache on the device: leave out the option")
        layout = KVCacheLayout[config.kv_cache_layout]
        size, blocks = tensors[0].size, config.num_blocks
        block_bytes, layer_bytes = tensors[0].block_stride, tensors[0].layer_stride
        if layout.is_block_outermost and all(t.block_stride * blocks == size for t in tensors):
            return cls(blocks, 1, block_bytes, True)
        if layout.is_layer_compact and layout.is_block_compact and all(
                t.block_stride == block_bytes and t.layer_stride == layer_bytes == block_bytes * blocks
                and t.offset % layer_bytes == 0 for t in tensors):
            return cls(blocks, size // layer_bytes, block_bytes, False)
        raise ValueError(f"{_OPERATION}: the layout {layout.name} of this model does not have all bytes of a block in "
                         "parts of one size; set VLLM_KV_CACHE_LAYOUT=BLNHC if the attention backend supports it, or "
                         "leave out the option")

    def adapted(self, config: Any, region_bytes: int) -> Any:
        """The configuration with the distance between regions that an arena has, which is a multiple of its pages."""
        config = copy.deepcopy(config)
        for t in config.kv_cache_tensors:
            t.size = self.regions * region_bytes
            if not self.is_block_outermost:
                t.offset = t.offset // t.layer_stride * region_bytes
                t.layer_stride = region_bytes
        return config
