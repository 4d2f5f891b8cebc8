"""KVArena and KVSequenceArena: steps, blocks, tensors, short memory, and what is refused."""

import random
import threading
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

    def test_settled(self):
        with arena() as kv:
            self.assertTrue(kv.settled)
            kv.prepare(5)
            self.assertFalse(kv.settled)
            kv.begin_step()
            self.assertTrue(kv.settled)
            kv.prepare(5)  # changes nothing
            self.assertTrue(kv.settled)
            kv.prepare(0)
            self.assertFalse(kv.settled)

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

    def test_numbers_of_numpy_are_ids(self):
        numpy = numpy_or_skip()
        with arena() as kv:
            blocks = numpy.array(get(kv, 4), dtype=numpy.int32)
            kv.retain(blocks[:2])
            kv.release(blocks)
            kv.prepare(numpy.int64(4))
            kv.begin_step()
            kv.allocate(numpy.int64(1), after=blocks[1])
            self.assertEqual(kv.stats()["used"], 3)

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
                         lambda: arena(dim=0), lambda: arena(layers_per_range=3),
                         lambda: arena(heads=2**31, dim=2**31)):
                self.assertRaises(stillmap.InvalidArgumentError, call)
            for call in (lambda: kv.release(blocks[0]), lambda: kv.release(["0"]), lambda: kv.allocate(-1),
                         lambda: kv.release([-1]), lambda: kv.tensor("0"), lambda: arena(dtype="words"),
                         lambda: arena(blocks=None)):
                self.assertRaises(TypeError, call)
            self.assertRaisesSaying(stillmap.OutOfMemoryError, "free", kv.allocate, 200)
            self.assertRaises(stillmap.OutOfMemoryError, kv.allocate, 1 << 60)
            self.assertEqual(kv.stats()["used"], 2)


@needs_vmm
class Sequences(TestCase):
    def sequences(self, **options):
        return stillmap.KVSequenceArena(**{**SHAPE, "longest": 4096, "sequences": 8, **options})

    def step(self, kv):
        kv.prepare()
        self.assertEqual(kv.begin_step(), 0)

    def test_a_sequence_grows_in_place(self):
        with self.sequences() as kv:
            one = kv.add()
            self.assertEqual(kv.capacity(one), 0)
            kv.reserve(one, 100)
            self.step(kv)
            self.assertGreaterEqual(kv.capacity(one), 100)
            view = kv.tensor(one, 2, 1)
            self.assertEqual(view.shape, (4096, 8, 128))
            self.assertEqual(view.strides, (kv.layout["block_stride"] // 2, 128, 1))
            self.assertEqual(kv.tensor(one, 2).shape, (2, 4096, 8, 128))
            last = view.address + 99 * kv.layout["block_stride"]
            driver().write(last, b"token 99")
            kv.reserve(one, 4096)
            self.step(kv)
            self.assertEqual(kv.tensor(one, 2, 1).address, view.address)
            self.assertEqual(driver().read(last, 8), b"token 99")
            kv.release_beyond(one, 100)
            self.step(kv)
            self.assertLess(kv.capacity(one), 4096)
            kv.remove(one)
            self.assertEqual(kv.stats()["sequences"], 0)

    def test_a_fork_has_the_tokens(self):
        with self.sequences() as kv:
            prompt = kv.add()
            kv.reserve(prompt, 200)
            self.step(kv)
            stride = kv.layout["block_stride"]
            for layer in range(8):
                for token in range(200):
                    driver().write(kv.tensor(prompt, layer, 1).address + token * stride, bytes([layer, token]) * 1024)
            held = kv.stats()["memory_bytes"]
            fork = kv.fork(prompt, 199)
            self.assertNotEqual(fork, prompt)
            self.step(kv)
            for layer in range(8):
                for token in range(199):
                    self.assertEqual(driver().read(kv.tensor(fork, layer, 1).address + token * stride, 2048),
                                     bytes([layer, token]) * 1024)
            self.assertLess(kv.stats()["memory_bytes"], 2 * held)
            self.assertEqual(kv.stats()["copied_groups"], 1)

    def test_wrong_sequences(self):
        with self.sequences(sequences=2) as kv:
            one = kv.add()
            kv.reserve(one, 10)
            self.step(kv)
            view = kv.tensor(one, 0, 0)
            kv.remove(one)
            for call in (lambda: kv.reserve(one, 1), lambda: kv.capacity(one), lambda: kv.remove(one), view.__dlpack__,
                         lambda: kv.tensor(one, 0, 0), lambda: kv.fork(one, 1), lambda: kv.release_beyond(one, 0),
                         lambda: view.__cuda_array_interface__, lambda: kv.reserve(2**63, 1)):
                self.assertRaisesSaying(stillmap.InvalidArgumentError, "sequence", call)
            other = kv.add()
            self.assertNotEqual(other, one)
            for call in (lambda: kv.reserve(other, 4097), lambda: kv.fork(other, 1), lambda: kv.tensor(other, 8),
                         lambda: kv.missing_for(4097), lambda: self.sequences(longest=0),
                         lambda: self.sequences(sequences=0)):
                self.assertRaises(stillmap.InvalidArgumentError, call)
            kv.add()
            self.assertRaisesSaying(stillmap.Error, "sequence", kv.add)
            for call in (lambda: kv.reserve("1", 1), lambda: kv.reserve(-1, 1), lambda: kv.capacity(None)):
                self.assertRaises(TypeError, call)


@needs_vmm
class Memory(TestCase):
    def test_short_memory_is_a_value(self):
        said = self.run_python("""
            import stillmap
            shape = dict(layers=8, heads=8, dim=128, dtype="float16")
            kv = stillmap.KVArena(**shape, blocks=1024, spare_blocks=0)   # 512 KiB a block
            assert kv.missing_for(1024) > 0 and kv.missing_for(16) == 0
            kv.prepare(1024)
            short = kv.begin_step()
            assert 448 << 20 <= short <= 480 << 20, short
            assert kv.free_blocks >= 64, kv.free_blocks
            try:
                kv.allocate(1024)
                raise SystemExit("allocated")
            except stillmap.OutOfMemoryError as error:
                assert error.unit == "bytes" and error.value > error.limit, error
            blocks = kv.allocate(64)                   # the step may run with what there is
            kv.prepare(0)
            assert kv.begin_step() == 0
            kv.release(blocks)
            kv.close()
            kv = stillmap.KVSequenceArena(**shape, longest=4096, sequences=2)
            one, two = kv.add(), kv.add()
            kv.reserve(one, 1024)
            kv.reserve(two, 4096)
            kv.prepare()
            short = kv.begin_step()
            assert 90 << 20 <= short <= 128 << 20, short
            assert kv.capacity(one) >= 1024 and kv.capacity(two) < 4096
            kv.remove(two)
            kv.prepare()
            assert kv.begin_step() == 0
        """, HOSTCUDA=self.one_machine("memory=64M"))
        self.assertEqual(said, "")

    def test_cached_blocks_go_when_others_ask(self):
        name = self.path("offer").replace("/", "-")
        with stillmap.SharedQuota(name, 16 * MiB) as mine, stillmap.SharedQuota(name) as others:
            self.addCleanup(stillmap.SharedQuota.remove, name)
            mine.start_thread()
            with arena(quota=mine) as kv:
                used, old, new = get(kv, 8), get(kv, 8), get(kv, 8)
                kv.release(old, keep=True)
                kv.release(new, keep=True)
                self.assertEqual((kv.wanted, kv.give()), (0, []))
                self.assertGreater(kv.missing_for(16), 0)
                got, evicted = [], []

                def ask():
                    with others.room(6 * MiB):
                        got.append(others.stats()["own"])

                asks = threading.Thread(target=ask)
                asks.start()
                while asks.is_alive():
                    kv.begin_step()
                    if kv.wanted:
                        evicted += kv.give()
                    kv.prepare(0)
                    asks.join(0.001)
                kv.begin_step()
                self.assertEqual(got, [6 * MiB])
                self.assertEqual(len(evicted), 4)  # a page group; the rest was free
                self.assertLess(set(evicted), set(old))
                self.assertEqual((kv.stats()["used"], kv.stats()["cached"]), (8, 12))
                kv.release(used)

    def test_a_quota_counts(self):
        with stillmap.SharedQuota(self.path("quota").replace("/", "-"), 16 * MiB, device=0) as quota:
            self.addCleanup(stillmap.SharedQuota.remove, quota.name)
            with arena(quota=quota) as kv:
                kv.prepare(16)
                self.assertEqual(kv.begin_step(), 0)
                self.assertEqual(quota.stats()["own"], 8 * MiB)
                kv.prepare(64)
                self.assertEqual(kv.begin_step(), 16 * MiB)
                kv.prepare(0)
                kv.begin_step()
                kv.trim()
                self.assertEqual(quota.stats()["own"], 0)

    def test_suspended_memory_is_busy(self):
        with arena(tag="kv to suspend") as kv:
            block, = get(kv, 1)
            place = kv.tensor(0, 0).address + block * kv.layout["block_stride"]
            driver().write(place, b"stays")
            generation = kv.generation
            stillmap.suspend("kv to suspend")
            self.assertRaisesSaying(stillmap.BusyError, "suspended", kv.begin_step)
            stillmap.resume("kv to suspend")
            self.assertEqual(kv.begin_step(), 0)
            self.assertEqual(driver().read(place, 5), b"stays")
            self.assertGreater(kv.generation, generation)

    def test_compacting(self):
        with arena(blocks=64) as kv:
            blocks = get(kv, 64)
            stride = kv.layout["block_stride"]
            keys = kv.tensor(7, 0).address
            for block in blocks:
                driver().write(keys + block * stride, bytes([block]) * 100)
            kv.release([b for b in blocks if b % 8])
            names = {b: b for b in blocks if b % 8 == 0}     # now, and when it was written
            before = kv.stats()["mapped_bytes"]
            for was, now in kv.compact(64):
                names[now] = names.pop(was)
            driver().call("cuCtxSynchronize")
            self.assertEqual(kv.stats()["moved_blocks"] > 0, True)
            for now, written in names.items():
                self.assertEqual(driver().read(keys + now * stride, 100), bytes([written]) * 100)
            self.assertEqual(sum(cell["used"] for cell in kv.occupancy()), 8)
            kv.prepare(0)
            kv.begin_step()
            kv.trim()
            self.assertLess(kv.stats()["mapped_bytes"], before)
            committed = {b for first, n in kv.committed_ranges() for b in range(first, first + n)}
            self.assertLessEqual(set(names), committed)

    def test_threads(self):
        with arena(blocks=1024) as kv:
            kv.prepare(1024)
            kv.begin_step()
            seen, failures = [], []

            def work():
                try:
                    for _ in range(50):
                        blocks = kv.allocate(7)
                        kv.retain(blocks[:3])
                        kv.release(blocks)
                        kv.prepare(500)
                        kv.begin_step()
                        kv.release(blocks[:3], keep=True)
                        seen.append(blocks)
                except Exception as error:
                    failures.append(error)
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual((failures, len(seen)), ([], 200))
            self.assertEqual(kv.stats()["used"], 0)
            self.assertLessEqual(kv.stats()["cached"], 600)

    def test_a_waiting_step_does_not_hold_the_gil(self):
        stream = driver().stream()
        with arena() as kv:
            blocks = get(kv, 64)
            kv.release(blocks)
            gate = driver().queue_gate(stream)
            kv.prepare(0, stream)
            threading.Timer(0.05, gate.open).start()
            kv.trim()                    # waits for the device; the timer's thread needs the GIL
            self.assertEqual(kv.stats()["mapped_bytes"], 0)
        driver().destroy(stream)


@needs_vmm
class Growths(TestCase):
    def test_one_that_ends_frees_its_page_groups(self):
        with arena(blocks=64, layers_per_range=8) as kv:
            per_group = kv.layout["group_bytes"] // (kv.layout["block_stride"])
            sequences = [[], []]
            for _ in range(3 * per_group):
                kv.prepare([(1, s[-1] if s else None) for s in sequences])
                self.assertEqual(kv.begin_step(), 0)
                for s in sequences:
                    s += kv.allocate(1, s[-1] if s else None)
            self.assertEqual(kv.stats()["mapped_bytes"], 6 * kv.layout["group_bytes"])
            kv.release(sequences[0])
            kv.prepare([])
            kv.begin_step()
            self.assertEqual(kv.stats()["mapped_bytes"], 3 * kv.layout["group_bytes"])
            with self.assertRaises(ValueError):
                kv.prepare([(1, sequences[0][0])])
            for wrong in ([(1,)], [(-1, None)], [1], "ab", None):
                with self.assertRaises(TypeError):
                    kv.prepare(wrong)


@needs_vmm
class Processes(TestCase):
    def test_a_forked_child_frees_nothing(self):
        self.run_python("""
            import os, stillmap
            kv = stillmap.KVArena(layers=8, heads=8, dim=128, dtype="float16", blocks=64)
            kv.prepare(8)
            child = os.fork()
            if child == 0:
                try:
                    kv.begin_step()
                except stillmap.NotSupportedError:
                    del kv
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert kv.begin_step() == 0 and len(kv.allocate(8)) == 8
        """)

    def test_a_program_ends_with_all_of_it_alive(self):
        self.run_python("""
            import stillmap
            shape = dict(layers=8, heads=8, dim=128, dtype="float16")
            kv = stillmap.KVArena(**shape, blocks=64)
            kv.prepare(64)
            sequences = stillmap.KVSequenceArena(**shape, longest=4096, sequences=4)
            one = sequences.add()
            sequences.reserve(one, 4000)
            sequences.prepare()
            view, capsule = sequences.tensor(one, 0), kv.tensor(0, 0).__dlpack__()
        """)


class NaiveArena:
    """What the documents say of blocks, without addresses: who has how many references."""

    def __init__(self):
        self.used, self.cached = {}, set()

    def check(self, kv):
        stats = kv.stats()
        return (stats["used"], stats["cached"]) == (len(self.used), len(self.cached))


@needs_vmm
class Model(TestCase):
    def test_random_calls(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                self.run_model(random.Random(seed), tokens_per_block=(16, 4)[seed % 2],
                               layers_per_range=(0, 8, 1)[seed % 3])

    def run_model(self, rng, **options):
        kv, model = arena(blocks=200, spare_blocks=rng.choice([0, 16]), **options), NaiveArena()
        stride, views = kv.layout["block_stride"], [kv.tensor(layer, i).address for layer in (0, 7) for i in (0, 1)]
        written = {}

        def write(block):
            written[block] = rng.randbytes(8)
            for at in views:
                driver().write(at + block * stride, written[block])

        def verify(blocks):
            for block in blocks:
                for at in views:
                    self.assertEqual(driver().read(at + block * stride, 8), written[block])

        def some(blocks, most=6):
            blocks = sorted(blocks)
            return rng.sample(blocks, min(len(blocks), rng.randint(0, most)))

        for _ in range(300):
            action = rng.choice(("step", "allocate", "allocate", "retain", "release", "release", "drop", "evict",
                                 "compact", "wrong", "trim"))
            if action == "step":
                n = rng.randint(0, 60) if len(model.used) + len(model.cached) < 130 else 0
                kv.prepare(n if rng.random() < 0.5 else [(n, rng.choice(sorted(model.used)) if model.used else None)])
                self.assertEqual(kv.begin_step(), 0)
            elif action == "allocate":
                n = rng.randint(0, 12)
                after = rng.choice(sorted(model.used)) if model.used and rng.random() < 0.5 else None
                free = kv.free_blocks
                try:
                    blocks = kv.allocate(n, after)
                except stillmap.OutOfMemoryError:
                    self.assertLess(free, n)
                    continue
                self.assertLessEqual(n, free)
                self.assertEqual(len(set(blocks)), n)
                self.assertFalse(set(blocks) & (model.used.keys() | model.cached))
                for block in blocks:
                    model.used[block] = 1
                    write(block)
            elif action == "retain":
                blocks = some(model.used.keys() | model.cached)
                kv.retain(blocks)
                for block in blocks:
                    model.cached.discard(block)
                    model.used[block] = model.used.get(block, 0) + 1
            elif action == "release":
                blocks, keep = some(model.used), rng.random() < 0.4
                kv.release(blocks, keep=keep)
                for block in blocks:
                    model.used[block] -= 1
                    if not model.used[block]:
                        del model.used[block]
                        if keep:
                            model.cached.add(block)
            elif action == "drop":
                blocks = some(model.cached)
                kv.drop(blocks)
                model.cached.difference_update(blocks)
            elif action == "evict":
                n = rng.randint(0, 10)
                blocks = kv.evict(n)
                self.assertLessEqual(set(blocks), model.cached)
                self.assertGreaterEqual(len(blocks), min(n, len(model.cached)))
                model.cached.difference_update(blocks)
            elif action == "compact":
                for was, now in kv.compact(rng.randint(0, 20)):
                    self.assertNotIn(now, model.used.keys() | model.cached)
                    written[now] = written[was]
                    if was in model.used:
                        model.used[now] = model.used.pop(was)
                    else:
                        model.cached.remove(was)
                        model.cached.add(now)
                driver().call("cuCtxSynchronize")
            elif action == "trim":
                kv.trim()
            else:
                free = next(b for b in range(200) if b not in model.used and b not in model.cached)
                wrong = some(model.used) + [free]
                self.assertRaises(stillmap.InvalidArgumentError, kv.release, wrong)
                self.assertRaises(stillmap.InvalidArgumentError, kv.retain, wrong)
            self.assertTrue(model.check(kv), action)
            cells = kv.occupancy()
            self.assertEqual(sum(cell["blocks"] for cell in cells), 200)
            self.assertEqual(sum(cell["used"] for cell in cells), len(model.used))
            committed = {b for first, n in kv.committed_ranges() for b in range(first, first + n)}
            self.assertLessEqual(model.used.keys() | model.cached, committed)
            verify(some(model.used.keys() | model.cached))
        verify(model.used.keys() | model.cached)
        kv.close()


class Unsupported(TestCase):
    def test_without_virtual_memory(self):
        if device()["vmm"]:
            self.skipTest("the device has virtual memory management")
        self.assertRaisesSaying(stillmap.NotSupportedError, "virtual memory", arena)
        self.assertRaisesSaying(stillmap.NotSupportedError, "virtual memory", stillmap.KVSequenceArena, **SHAPE,
                                longest=10, sequences=1)


if __name__ == "__main__":
    unittest.main()
