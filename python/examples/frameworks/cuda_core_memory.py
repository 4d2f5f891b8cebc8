"""cuda.core on Stillmap: a resource for the device, and a buffer that grows at its address."""

from cuda.core import Device
from stillmap.cuda_core import MemoryResource, allocate_growable, grow

device = Device()
device.set_current()
stream = device.create_stream()
device.memory_resource = MemoryResource(device.device_id, tag="arrays")

buffer = device.allocate(1 << 20, stream=stream)
buffer.fill(1, stream=stream)
print("live:", device.memory_resource.allocator.stats()["total"]["live"], "bytes")

cache = allocate_growable(1 << 20, reserve=1 << 30, tag="kv")
cache.fill(2, stream=stream)
larger = grow(cache, 64 << 20, stream=stream)  # nothing is copied, and the address stays
assert int(larger.handle) == int(cache.handle)
print("grown from", cache.size >> 20, "to", larger.size >> 20, "MiB in place")
stream.sync()
