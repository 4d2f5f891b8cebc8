"""CuPy on Stillmap: every array from now on. Needs a GPU: CuPy's static CUDA runtime refuses hostcuda."""

import cupy
import stillmap.cupy

stillmap.cupy.use()
array = cupy.arange(1 << 20)
assert stillmap.cupy.heap().owns(array.data.ptr)
print("live:", stillmap.cupy.heap().stats()["total"]["live"] >> 20, "MiB")
