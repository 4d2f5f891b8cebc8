"""A caching allocator with a limit, a callback when memory runs out, a trace and a picture."""

import os
import tempfile

import stillmap

folder = tempfile.mkdtemp()
spare = []


def free_spare(nbytes):
    """Called when a request of nbytes would fail; True: try again."""
    if not spare:
        return False
    heap.free(spare.pop())
    return True


with stillmap.record(os.path.join(folder, "requests.trace")) as recording:
    with stillmap.CachingAllocator(tag="demo", limit=64 << 20, on_out_of_memory=free_spare) as heap:
        spare += [heap.allocate(16 << 20) for _ in range(4)]
        block = heap.allocate(32 << 20)  # the callback frees two spare blocks
        print("spare blocks left:", len(spare))
        heap.memory_map().save(os.path.join(folder, "heap.html"))
        heap.free(block)

for name in ("stillmap", "segments"):
    result = stillmap.replay(recording.path, name)
    print("%-9s held %3d MiB at the peak" % (name, result["peak_committed_bytes"] >> 20))
