"""Warp on Stillmap: arrays of a device in an allocator with a limit."""

import stillmap.warp
import warp as wp

wp.init()
memory = stillmap.warp.Allocator("cuda:0", limit=1 << 30)
wp.set_device_allocator("cuda:0", memory)

array = wp.empty(1 << 20, dtype=wp.float32, device="cuda:0")
assert memory.allocator.owns(array.ptr)
print("live:", memory.allocator.stats()["total"]["live"] >> 20, "MiB")
