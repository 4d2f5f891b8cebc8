"""Memory that grows in place, sleeps, and survives its process."""

import os
import tempfile

import stillmap

# [ten_lines]
cache = stillmap.GrowableBuffer(4 << 20, tag="kv", reserve=1 << 30, hint=0x200000000000)
address = cache.address
cache.copy_from_host(b"contents")
cache.resize(64 << 20)  # the address stays, and nothing is copied
assert cache.address == address

stillmap.suspend("kv")  # its pages are the device's again
print("asleep:", stillmap.suspended()[0]["released_bytes"] >> 20, "MiB released")
stillmap.resume("kv")  # the same addresses, the same contents
assert cache.copy_to_host(8) == b"contents"

image = os.path.join(tempfile.mkdtemp(), "kv.smi")
stillmap.snapshot(image, "kv", notes={"step": b"7"}, progress=True)
cache.close()
with stillmap.restore(image) as restored:  # here, or in another process
    assert restored.blocks[0]["address"] == address
    print("restored at the same address, step", restored.notes["step"].decode())
# [/ten_lines]
