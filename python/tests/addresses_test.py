"""Address space: a default reservation is a wish that shrinks, a stated one is a demand, and an error says
how much there is."""

import unittest

import stillmap
from support import MiB, TestCase, needs_vmm

GiB = 1 << 30


@needs_vmm
class Addresses(TestCase):
    def test_many_vectors_with_the_default(self):
        count = 3000
        vectors = [stillmap.DeviceVector("float32") for _ in range(count)]
        figures = stillmap.stats()
        self.assertLess(figures["reserved_bytes"], 1 << 46)
        vectors[-1].append(1.0)
        self.assertEqual(vectors[-1].tolist(), [1.0])
        with stillmap.GrowableBuffer(1, reserve=GiB) as buffer, stillmap.CachingAllocator() as heap:
            self.assertEqual(buffer.reserved, GiB)
            heap.free(heap.allocate(100))
        for vector in vectors:
            vector.close()
        first = stillmap.GrowableBuffer(1)
        self.assertGreaterEqual(first.reserved, min(stillmap.device_info()["total_bytes"],
                                                    stillmap.device_info()["largest_reservation"] // 2))

    def test_the_error_of_a_demand_says_what_there_is(self):
        for wanted in (1 << 47, 1 << 52, 2**64 - 1):
            with self.subTest(wanted):
                error = self.assertRaisesSaying(stillmap.Error, "address space exhausted", stillmap.GrowableBuffer, 1,
                                                reserve=wanted)
                self.assertEqual(error.unit, "bytes")
                self.assertGreaterEqual(error.value, wanted - 2 * MiB)
                self.assertLess(error.limit, wanted)
                with stillmap.GrowableBuffer(0, reserve=error.limit - 4 * GiB) as most:
                    self.assertGreaterEqual(most.reserved, error.limit - 4 * GiB)
                self.assertRaises(stillmap.Error, stillmap.GrowableBuffer, 0, reserve=error.limit + 4 * GiB)

    FEW = """
        import resource, stillmap
        stillmap.device_info()
        now = int(open("/proc/self/statm").read().split()[0]) * 4096
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if not 0 < now < (1 << 45): raise SystemExit("skip")
        resource.setrlimit(resource.RLIMIT_AS, (now + (%d << 20), hard))
        GiB = 1 << 30
    """

    def run_with_few_addresses(self, mebibytes, code):
        """As under RLIMIT_AS, WDDM or a batch system, after the device was probed."""
        said = self.run_python(self.FEW % mebibytes + code, timeout=120)
        if said.strip() == "skip":
            self.skipTest("the process has no countable address space")
        return said

    def test_few_addresses_are_shared(self):
        self.run_with_few_addresses(4096, """
        buffers = [stillmap.GrowableBuffer(4 << 20) for _ in range(40)]
        for buffer in buffers[::8]:
            buffer.resize(24 << 20)      # some in place, some to other addresses
            buffer.copy_from_host(b"x" * 10, 20 << 20)
        demand = stillmap.GrowableBuffer(1, reserve=64 << 20)
        assert demand.reserved == 64 << 20
        heap = stillmap.CachingAllocator()
        blocks = [heap.allocate(size) for size in (100, 1 << 20, 24 << 20)]
        vector = stillmap.DeviceVector("float32", [1.0] * 1000)
        assert len(vector) == 1000
        try: stillmap.GrowableBuffer(1, reserve=64 * GiB)
        except stillmap.Error as error: assert 0 < error.limit < 4 * GiB, error
        else: raise SystemExit("64 GiB")
        """)

    def test_a_demand_is_not_made_smaller(self):
        self.run_with_few_addresses(1024, """
        try: stillmap.GrowableBuffer(1, reserve=2 * GiB)
        except stillmap.Error as error:
            assert error.value == 2 * GiB and error.limit < 1100 << 20, error
            with stillmap.GrowableBuffer(1, reserve=error.limit * 3 // 4) as b: assert b.reserved
        else: raise SystemExit("2 GiB")
        """)


if __name__ == "__main__":
    unittest.main()
