"""Stillmap for PyTorch. docs/pytorch.md

    import stillmap.torch
    stillmap.torch.use()                     # all of PyTorch's device memory comes from Stillmap

    kv = stillmap.torch.pool("kv")           # or only what is allocated inside of `with kv.use():`
    with kv.use():
        cache = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    kv.suspend()                             # the device has the memory, cache.data_ptr() stays
    kv.resume()

Sizes are bytes. Tested with PyTorch 2.14 and 2.15.
"""

from ._control import safe_point
from ._growable import GrowableTensor
from ._kv_arena import kv_tensor
from ._pool import Pool, pool
from ._publication import PublishedState, attach, attach_or_load, make_writable, publish
from ._report import Report, report
from ._state import Restored, resume, restore, snapshot, suspend, suspended
from ._use import in_use, memory_map, memory_summary, stats, use

__all__ = ["GrowableTensor", "Pool", "PublishedState", "Report", "Restored", "attach", "attach_or_load", "in_use",
           "kv_tensor", "make_writable", "memory_map", "memory_summary", "pool", "publish", "report", "restore", "resume",
           "safe_point", "snapshot", "stats", "suspend", "suspended", "use"]
