"""KVArena and KVSequenceArena: steps, blocks, tensors, short memory, and what is refused."""

import random
import unittest

import stillmap
from support import MiB, TestCase, device, driver, needs_vmm, numpy_or_skip

# 8 layers of 32 KiB a token in two ranges: a block of 16 tokens is 512 KiB, in pages of 2 MiB.
SHAPE = dict(layers=8, heads=8, dim=128, dtype="float16")


def arena(**options):
    return stillmap.KVArena(**{**SHAPE, "blocks": 256, "spare_blocks": 0, **options})


def get(kv, blocks):
    """Memory for blocks, and the blocks."""
    kv.prepare(blocks)
    if kv.begin_step():
        raise AssertionError("memory is short")
    return kv.allocate(blocks)


@needs_vmm
class Blocks(TestCase):
    def test_a_step(self):
        with arena() as kv:
            self.assertEqual(kv.stats()["mapped_bytes"], 0)
            self.assertEqual(kv.begin_step(), 0)
            prompt = get(kv, 5)
            self.assertEqual(len(set(prompt)), 5)
            self.assertEqual(kv.stats()["used"], 5)
            self.assertGreaterEqual(kv.stats()["mapped_bytes"], 5 * 512 << 10)
            self.assertEqual(kv.free_blocks, kv.stats()["free"])
            kv.release(prompt)
            self.assertEqual(kv.stats()["used"], 0)
            kv.prepare(0)
            kv.begin_step()
            kv.trim()
            self.assertEqual(kv.stats()["mapped_bytes"], 0)

    def test_bytes_of_each_layer_are_their_own(self):
        with arena() as kv:
            blocks = get(kv, 40)
            place = lambda layer, i, block: kv.tensor(layer, i).address + block * kv.layout["block_stride"]
            size = kv.layout["block_bytes"]
            for layer in range(8):
                for i in range(2):
                    for block in blocks:
                        driver().write(place(layer, i, block), bytes([layer * 2 + i, block]) * (size // 2))
            for layer in range(8):
                for i in range(2):
                    for block in blocks:
                        self.assertEqual(driver().read(place(layer, i, block), size),
                                         bytes([layer * 2 + i, block]) * (size // 2))

    def test_what_is_kept(self):
        with arena() as kv:
            blocks = get(kv, 8)
            kv.retain(blocks[:2])
            kv.release(blocks, keep=True)
            self.assertEqual((kv.stats()["used"], kv.stats()["cached"]), (2, 6))
            kv.retain(blocks[2:3])
            self.assertEqual((kv.stats()["used"], kv.stats()["cached"]), (3, 5))
            kv.drop(blocks[3:4])
            evicted = kv.evict(100)
            self.assertEqual(sorted(evicted), sorted(blocks[4:]))
            kv.release(blocks[:3])
            self.assertEqual((kv.stats()["used"], kv.stats()["cached"]), (0, 0))

    def test_tensors(self):
        with arena() as kv:
            one, both = kv.tensor(3, 1), kv.tensor(3)
            stride = kv.layout["block_stride"] // 2
            self.assertEqual(one.shape, (256, 16, 8, 128))
            self.assertEqual(one.strides, (stride, 1024, 128, 1))
            self.assertEqual(both.shape, (2, 256, 16, 8, 128))
            self.assertEqual(both.strides, (16 * 1024, *one.strides))
            self.assertEqual(one.address, both.address + kv.layout["block_bytes"])
            self.assertEqual((one.dtype, one.itemsize, one.device), ("float16", 2, 0))
            self.assertIs(one.arena, kv)
            interface = one.__cuda_array_interface__
            self.assertEqual(interface["shape"], one.shape)
            self.assertEqual(interface["strides"], tuple(2 * n for n in one.strides))
            self.assertEqual(interface["data"], (one.address, False))

    def test_numpy(self):
        numpy = numpy_or_skip()
        with arena() as kv:
            blocks = get(kv, 6)
            view = kv.tensor(5, 1).numpy(blocks[0], blocks[0] + 1)
            self.assertEqual(view.shape, (1, 16, 8, 128))
            view[:] = numpy.arange(16 * 8 * 128).reshape(view.shape) % 1000
            at = kv.tensor(5, 1).address + blocks[0] * kv.layout["block_stride"]
            self.assertEqual(driver().read(at, kv.layout["block_bytes"]), view.tobytes())
            both = kv.tensor(5).numpy(blocks[0], blocks[0] + 2)
            self.assertEqual(both.shape, (2, 2, 16, 8, 128))
            self.assertTrue((both[1, 0] == view[0]).all())
            self.assertRaisesSaying(stillmap.NotSupportedError, "committed", kv.tensor(5, 1).numpy)
            self.assertRaisesSaying(stillmap.InvalidArgumentError, "behind", kv.tensor(5, 1).numpy, 0, 257)
            del view, both

    def test_a_view_keeps_the_arena(self):
        kv = arena()
        capsule = kv.tensor(0, 0).__dlpack__(max_version=(1, 0), stream=-1)
        self.assertRaisesSaying(stillmap.BusyError, "exported", kv.close)
        tensor = kv.tensor(0, 0)
        del capsule
        kv.close()
        self.assertRaisesSaying(stillmap.InvalidArgumentError, "closed", tensor.__dlpack__)
        self.assertRaisesSaying(stillmap.InvalidArgumentError, "closed", kv.begin_step)

    def test_wrong_values(self):
        with arena() as kv:
            blocks = get(kv, 2)
            free = [b for b in range(256) if b not in blocks]
            for call in (lambda: kv.retain([free[0]]), lambda: kv.release([256]), lambda: kv.drop(blocks[:1]),
                         lambda: kv.allocate(1, after=free[0]), lambda: kv.tensor(8, 0), lambda: kv.tensor(0, 2),
                         lambda: kv.missing_for(257), lambda: arena(blocks=0), lambda: arena(layers=0),
                         lambda: arena(dim=0), lambda: arena(layers_per_range=3), lambda: arena(heads=2**31, dim=2**31)):
                self.assertRaises(stillmap.InvalidArgumentError, call)
            for call in (lambda: kv.release(blocks[0]), lambda: kv.release(["0"]), lambda: kv.allocate(-1),
                         lambda: kv.release([-1]), lambda: kv.tensor("0"), lambda: arena(dtype="words"),
                         lambda: arena(blocks=None)):
                self.assertRaises(TypeError, call)
            self.assertRaisesSaying(stillmap.OutOfMemoryError, "free", kv.allocate, 200)
            self.assertRaises(stillmap.OutOfMemoryError, kv.allocate, 1 << 60)
            self.assertEqual(kv.stats()["used"], 2)


class Unsupported(TestCase):
    def test_without_virtual_memory(self):
        if device()["vmm"]:
            self.skipTest("the device has virtual memory management")
        self.assertRaisesSaying(stillmap.NotSupportedError, "virtual memory", arena)


if __name__ == "__main__":
    unittest.main()
