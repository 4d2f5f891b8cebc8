"""Numba on Stillmap: the device memory of arrays, and a picture of it. Run with or without a GPU (hostcuda)."""

import numpy as np
import stillmap.numba
from numba import cuda

stillmap.numba.configure(limit=1 << 30)
cuda.set_memory_manager(stillmap.numba.MemoryManager)  # before the first use of a device

host = np.arange(1 << 20, dtype=np.float32)
array = cuda.to_device(host)
assert (array.copy_to_host() == host).all()

heap = stillmap.numba.allocator()
assert heap.owns(int(array.gpu_data.handle))
print("live:", heap.stats()["total"]["live"] >> 20, "MiB; drawn in", len(heap.memory_map().to_svg()), "bytes of SVG")
