"""Every call of every Python object leaves everything as it was when a driver call in it fails."""

import os
import re
import unittest

import stillmap
from support import TestCase, device

# Read only, or without a driver call: nothing that a failure could leave half done.
READERS = {
    "GrowableBuffer": {"address", "nbytes", "capacity", "reserved", "page_bytes", "in_place", "tag", "device", "stats",
                       "numpy"},
    "DeviceVector": {"address", "nbytes", "capacity", "stream", "dtype", "itemsize", "tag", "device", "numpy"},
    "CachingAllocator": {"owns", "usable_size", "closed", "device", "tag", "c_param", "c_free", "c_functions"},
    "Restored": {"blocks", "notes", "closed"},
    # give() needs another process that asks: tests/allocators/kv/cache_offer_test.cpp fails its calls.
    "KVArena": {"address", "allocate", "blocks", "committed_ranges", "device", "drop", "dtype", "evict", "free_blocks",
                "generation", "give", "layout", "occupancy", "prepare", "release", "reserved", "retain", "settled", "stats",
                "tag", "wanted"},
    "KVSequenceArena": {"add", "address", "capacity", "device", "dtype", "fork", "generation", "layout", "longest",
                        "prepare", "release_beyond", "remove", "reserve", "reserved", "stats", "tag", "tensor"},
    "AttachedMemory": {"name", "generation", "metadata", "id", "device", "shared_bytes", "private_bytes", "ranges"},
}
# Functions that change nothing on a device, or are made of the others.
OTHERS = {"version", "device_count", "memory_map", "stream_handle", "plugin_path", "last_error", "suspended", "record",
          "timeline", "replay", "publications", "withdraw", "safe_point", "safe_region"}


@unittest.skipUnless(device()["hostcuda"], "needs a driver that can be told to fail")
class Faults(TestCase):
    def test_every_call_with_each_of_its_driver_calls_failing(self):
        # Work in an order that does not depend on threads: an operation makes the same calls every time.
        settings = os.environ.get("HOSTCUDA", "") + ",schedule=seeded:1"
        said = self.run_python("import fault_sweep, sys; fault_sweep.main()", timeout=600,
                               HOSTCUDA=settings.lstrip(","))
        print(said)
        self.assertNotIn("PROBLEM", said)
        points, calls = map(int, re.search(r"(\d+) points of (\d+) calls", said).groups())
        self.assertGreater(points, 100)
        self.assertGreater(calls, 25)

    def test_every_call_is_in_the_sweep(self):
        import fault_operations
        swept = {operation.call for operation in fault_operations.operations()}
        for name, readers in READERS.items():
            with self.subTest(name):
                public = {member for member in dir(getattr(stillmap, name)) if not member.startswith("_")}
                missing = {member for member in public - readers if "%s.%s" % (name, member) not in swept}
                self.assertEqual(missing, set())
        functions = {name for name in stillmap.__all__ if name[0].islower()}
        self.assertEqual(functions - OTHERS - swept, set())


if __name__ == "__main__":
    unittest.main()
