"""Tests of growth by cuda.core, with a simulated memory resource."""

import types
import unittest

from parts import cuda_core

MIB = 1 << 20


class Resource:
    def __init__(self, fails_at=None, moves_at=None):
        self.fails_at, self.moves_at, self.free = fails_at, moves_at, 1000 * MIB
        self.driver = types.SimpleNamespace(cuMemGetInfo=lambda: (0, self.free, 2000 * MIB))

    def allocate(self, size):
        if size == self.fails_at:
            raise RuntimeError("CUDA_ERROR_NOT_SUPPORTED")
        self.free -= size
        return types.SimpleNamespace(handle=4096, size=size)

    def modify_allocation(self, buffer, size):
        if size == self.fails_at:
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE\nand more")
        self.free -= size - buffer.size
        return types.SimpleNamespace(handle=buffer.handle + (size == self.moves_at), size=size)


class CudaCoreTest(unittest.TestCase):
    def grown(self, **how):
        resource = Resource(**how)
        return cuda_core.grown(resource, resource.driver, [2 * MIB, 4 * MIB, 8 * MIB])

    def test_grows_to_the_end(self):
        said = self.grown()
        self.assertEqual(
            (said["reached_bytes"], said["moved"], said["stopped"]), (8 * MIB, 0, None)
        )
        self.assertEqual(said["peak_of_device_bytes"], 8 * MIB)
        self.assertEqual([step["bytes"] for step in said["sizes"]], [2 * MIB, 4 * MIB, 8 * MIB])

    def test_a_new_address_is_counted(self):
        self.assertEqual(self.grown(moves_at=4 * MIB)["moved"], 1)

    def test_where_it_stops_is_a_finding(self):
        said = self.grown(fails_at=8 * MIB)
        self.assertEqual(said["reached_bytes"], 4 * MIB)
        self.assertEqual(
            said["stopped"], f"at {8 * MIB} bytes: RuntimeError: CUDA_ERROR_INVALID_VALUE"
        )

    def test_each_size_once(self):
        resource = Resource(fails_at=16 * MIB, moves_at=4 * MIB)
        said = cuda_core.grown_once(resource, resource.driver, [2 * MIB, 4 * MIB, 8 * MIB])
        self.assertEqual([step["bytes"] for step in said["sizes"]], [4 * MIB, 8 * MIB])
        self.assertEqual((said["reached_bytes"], said["moved"]), (8 * MIB, 1))
        self.assertIn("at 16777216 bytes", said["stopped"])

    def test_it_may_not_even_begin(self):
        said = self.grown(fails_at=2 * MIB)
        self.assertEqual((said["reached_bytes"], said["last_seconds"]), (0, None))
        self.assertIn("at 2097152 bytes", said["stopped"])


if __name__ == "__main__":
    unittest.main()
