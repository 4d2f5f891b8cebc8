"""RMM on Stillmap, from Python: RMM's own adaptors on top of it."""

import rmm
import stillmap
import stillmap.rmm

heap = stillmap.CachingAllocator(tag="rmm", limit=1 << 30)
counted = rmm.mr.StatisticsResourceAdaptor(stillmap.rmm.resource(allocator=heap))
ptr = counted.allocate(1 << 20)  # with a GPU: rmm.mr.set_current_device_resource(counted)
assert heap.owns(ptr)
print(counted.allocation_counts.current_bytes, "bytes by RMM's count")
counted.deallocate(ptr, 1 << 20)
