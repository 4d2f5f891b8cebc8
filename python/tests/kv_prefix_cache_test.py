"""Prefix caches saved and loaded by KVArena and KVSequenceArena: every byte, the entries, and what is refused."""

import os
import random
import unittest

import stillmap
from support import TestCase, driver, needs_vmm

# 4 layers of 16 KiB a token in two ranges: a page group holds 16 blocks of 16 tokens.
SHAPE = dict(layers=4, tensors=2, heads=8, dim=128, dtype="float16", layers_per_range=2)
TOKEN_BYTES = 2048


def block_arena(**options):
    return stillmap.KVArena(**{**SHAPE, "blocks": 64, "spare_blocks": 0, **options})


def sequence_arena(**options):
    return stillmap.KVSequenceArena(**{**SHAPE, "longest": 1024, "sequences": 8, "spare_bytes": 0, **options})


def step(kv, *wanted):
    kv.prepare(*wanted)
    if kv.begin_step():
        raise AssertionError("memory is short")


def key_of(number):
    """Any bytes."""
    return b"\0\xff" + b"%d" % (number * 7919)


# ---- blocks ----

def block_places(kv, block):
    for layer in range(4):
        for tensor in range(2):
            yield (layer, tensor), kv.tensor(layer, tensor).address + block * kv.layout["block_stride"]


def contents_of(kv, block, part):
    return random.Random("block %s %s" % (block, part)).randbytes(kv.layout["block_bytes"])


def write_blocks(kv, blocks):
    for block in blocks:
        for part, at in block_places(kv, block):
            driver().write(at, contents_of(kv, block, part))


def has_contents(kv, block):
    return all(driver().read(at, kv.layout["block_bytes"]) == contents_of(kv, block, part)
               for part, at in block_places(kv, block))


def filled(kv):
    """Entries for every third of 40 blocks, the last one first; one of them is used."""
    step(kv, 40)
    blocks = kv.allocate(40)
    write_blocks(kv, blocks)
    kept = [block for block in blocks if block % 3 == 0][::-1]
    kv.release(kept[1:], keep=True)
    kv.release([block for block in blocks if block % 3])
    step(kv, 0)
    return [(block, key_of(block)) for block in kept]


# ---- sequences ----

def token_bytes_of(seed, token, part):
    return random.Random("sequence %s %s %s" % (seed, token, part)).randbytes(TOKEN_BYTES)


def token_places(kv, sequence, first, end):
    for layer in range(4):
        for tensor in range(2):
            begin = kv.tensor(sequence, layer, tensor).address
            for token in range(first, end):
                yield token, (layer, tensor), begin + token * kv.layout["block_stride"]


def write_tokens(kv, sequence, first, end, seed):
    for token, part, at in token_places(kv, sequence, first, end):
        driver().write(at, token_bytes_of(seed, token, part))


def has_tokens(kv, sequence, first, end, seed):
    return all(driver().read(at, TOKEN_BYTES) == token_bytes_of(seed, token, part)
               for token, part, at in token_places(kv, sequence, first, end))


def filled_sequences(kv):
    """Entries for a prompt of 300 tokens, and an answer that has the prompt's first 290, and 30 of its own."""
    prompt = kv.add()
    kv.reserve(prompt, 300)
    step(kv)
    write_tokens(kv, prompt, 0, 300, "prompt")
    answer = kv.fork(prompt, 290)
    step(kv)
    kv.reserve(answer, 320)
    step(kv)
    write_tokens(kv, answer, 290, 320, "answer")
    return [(answer, 320, key_of(1)), (prompt, 300, key_of(2))]


def has_sequences(kv, entries):
    (answer, tokens, _), (prompt, others, _) = entries
    return ((tokens, others) == (320, 300) and has_tokens(kv, prompt, 0, 300, "prompt")
            and has_tokens(kv, answer, 0, 290, "prompt") and has_tokens(kv, answer, 290, 320, "answer"))


class CacheTest(TestCase):
    def setUp(self):
        super().setUp()
        self.file = self.path("cache.smi")

    def assertRefused(self, kind, operation, text, call, *arguments, value=0, limit=0, **options):
        error = self.assertRaisesSaying(kind, text, call, *arguments, **options)
        self.assertEqual((error.operation, error.value, error.limit), (operation, value, limit), error)

    def damage(self):
        with open(self.file, "r+b") as file:
            file.seek(-5000, os.SEEK_END)
            byte = file.read(1)
            file.seek(-5000, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))


@needs_vmm
class Blocks(CacheTest):
    def save(self, **options):
        with block_arena(**options) as kv:
            entries = filled(kv)
            kv.save(self.file, entries)
            return entries

    def test_blocks_and_keys_come_back_at_other_addresses(self):
        with block_arena() as kv, block_arena() as other:
            entries = filled(kv)
            entries[0] = (entries[0][0], b"")
            entries[1] = (entries[1][0], bytes(range(256)) * 16)  # the longest
            before = kv.stats()
            done = kv.save(self.file, entries)
            # 40 blocks are in 3 page groups, each of two pages.
            self.assertEqual(done["contents_bytes"], 6 * kv.layout["page_bytes"])
            self.assertEqual(done["file_bytes"], os.path.getsize(self.file))
            self.assertEqual(kv.stats(), before)
            self.assertTrue(all(has_contents(kv, block) for block, _ in entries))
            self.assertNotEqual(kv.address, other.address)
            self.assertEqual(other.load(self.file), entries)
            self.assertEqual((other.stats()["used"], other.stats()["cached"]), (0, len(entries)))
            for block, _ in entries:
                self.assertTrue(has_contents(other, block), block)
            # A hit.
            other.retain([entries[3][0]])
            self.assertEqual((other.stats()["used"], other.stats()["cached"]), (1, len(entries) - 1))

    def test_another_process_loads(self):
        entries = self.save()
        said = self.run_python("""
            import sys
            import kv_prefix_cache_test as tests
            with tests.block_arena() as first, tests.block_arena() as kv:
                entries = kv.load(sys.argv[1])
                assert all(tests.has_contents(kv, block) for block, _ in entries)
                print(entries)
        """, self.file)
        self.assertEqual(said.strip(), repr(entries))

    def test_the_first_entries_are_evicted_first(self):
        with block_arena() as kv:
            step(kv, 64)
            blocks = kv.allocate(64)  # a page group is evicted as a whole: one of each
            order = [blocks[32], blocks[0], blocks[48], blocks[16]]
            kv.save(self.file, [(block, b"") for block in order])
        with block_arena() as kv:
            kv.load(self.file)
            self.assertEqual([kv.evict(1) for _ in order], [[block] for block in order])

    def test_on_a_stream(self):
        entries = self.save()
        stream = driver().stream()
        with block_arena() as kv:
            self.assertEqual(kv.load(self.file, stream), entries)
            self.assertTrue(all(has_contents(kv, block) for block, _ in entries))
            self.assertRaises(TypeError, kv.load, self.file, "a stream")
        driver().destroy(stream)

    def test_no_entries(self):
        with block_arena() as kv:
            kv.save(self.file, [])
            self.assertEqual(kv.load(self.file), [])

    def test_options_of_images(self):
        child = self.path("child.smi")
        with block_arena() as kv:
            entries = filled(kv)
            kv.save(self.file, entries)
            self.assertRaises(FileExistsError, kv.save, self.file, entries)
            kv.save(self.file, entries, replace=True)
            _, at = next(block_places(kv, entries[0][0]))
            driver().write(at, bytes(kv.layout["block_bytes"]))
            done = kv.save(child, entries, parent=self.file, compression="zstd")
            self.assertEqual((done["parent_chunks"], done["chunks"]), (5, 6))
            self.assertRaisesSaying(stillmap.BusyError, "child.smi", kv.save, self.file, entries, replace=True)
            self.assertRaises(FileNotFoundError, kv.save, self.path("x"), entries, parent=self.path("none"))
            self.assertRefused(stillmap.InvalidArgumentError, "KVArena.save", "rar", kv.save, self.path("x"), entries,
                               compression="rar")
        with block_arena() as kv:
            self.assertEqual(kv.load(child), entries)
            self.assertFalse(has_contents(kv, entries[0][0]))
            self.assertTrue(all(has_contents(kv, block) for block, _ in entries[1:]))
        with block_arena() as kv:
            other = filled(kv)
            kv.save(self.file, other, replace=True, force=True)
        with block_arena() as kv:
            self.assertRaises(FileNotFoundError, kv.load, child)

    def test_what_cannot_be_saved(self):
        with block_arena() as kv:
            entries = filled(kv)
            free = next(block for block in range(64) if block % 3)
            refused = lambda text, given, **numbers: self.assertRefused(
                stillmap.InvalidArgumentError, "KVArena.save", text, kv.save, self.file, given, **numbers)
            refused("free", entries + [(free, b"")], value=free)
            refused("free", [(64, b"")], value=64)
            refused("twice", entries + entries[2:3], value=entries[2][0])
            refused("key", [(entries[0][0], bytes(4097))], value=4097, limit=4096)
            kv.prepare(50)
            self.assertRefused(stillmap.BusyError, "KVArena.save", "begin_step", kv.save, self.file, entries)
            kv.begin_step()
            for wrong in (None, 3, [3], [(3,)], [("3", b"")], [(3, "text")], [(-1, b"")], [(3, b"", 4)], [(3, None)]):
                self.assertRaises(TypeError, kv.save, self.file, wrong)
            self.assertRaises(TypeError, kv.save, 3, entries)
            self.assertRaises(FileNotFoundError, kv.save, self.path("no/cache.smi"), entries)
        self.assertRefused(stillmap.InvalidArgumentError, "KVArena", "closed", kv.save, self.file, entries)
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_cannot_be_loaded(self):
        entries = self.save()
        with sequence_arena() as kv:
            filled_sequences(kv)
            kv.save(self.path("sequences.smi"), [])
        with stillmap.GrowableBuffer(4096, tag="no cache"):
            stillmap.snapshot(self.path("other.smi"), "no cache")

        def refused(kind, text, kv, path=self.file, **numbers):
            self.assertRefused(kind, "KVArena.load", text, kv.load, path, **numbers)
        for options in (dict(blocks=128), dict(layers=8), dict(tokens_per_block=32), dict(layers_per_range=4)):
            with block_arena(**options) as kv:
                refused(stillmap.InvalidArgumentError, "another shape", kv)
        with block_arena(blocks=128) as kv:
            self.assertRaisesSaying(stillmap.InvalidArgumentError, "128 blocks", kv.load, self.file)
            self.assertRaisesSaying(stillmap.InvalidArgumentError, " 64 blocks", kv.load, self.file)
        with block_arena(tag="another") as kv:
            refused(stillmap.InvalidArgumentError, "another tag", kv)
        with block_arena() as kv:
            for other in ("sequences.smi", "other.smi"):
                refused(stillmap.InvalidArgumentError, "no prefix cache", kv, self.path(other))
            error = self.assertRaisesSaying(FileNotFoundError, "none", kv.load, self.path("none"))
            self.assertEqual(error.filename, self.path("none"))
            self.assertRaises(TypeError, kv.load, None)
            step(kv, 1)
            block = kv.allocate(1)
            refused(stillmap.BusyError, "in use", kv, value=1)
            kv.release(block, keep=True)
            refused(stillmap.BusyError, "in use", kv, value=1)
            kv.drop(block)
            self.assertEqual(kv.load(self.file), entries)
            refused(stillmap.BusyError, "in use", kv, value=len(entries))
        self.damage()
        with block_arena() as kv:
            error = self.assertRaisesSaying(stillmap.CorruptError, self.file, kv.load, self.file)
            self.assertEqual(error.operation, "KVArena.load")
            self.assertEqual((kv.stats()["used"], kv.stats()["cached"]), (0, 0))
        self.assertRefused(stillmap.InvalidArgumentError, "KVArena", "closed", kv.load, self.file)


@needs_vmm
class Sequences(CacheTest):
    def test_sequences_come_back_at_other_addresses(self):
        with sequence_arena() as kv, sequence_arena() as other:
            entries = filled_sequences(kv)
            done = kv.save(self.file, entries)
            # The answer has one page group of its own beside the prompt's two: what both have is there once.
            self.assertEqual(done["contents_bytes"], 6 * kv.layout["page_bytes"])
            self.assertTrue(has_sequences(kv, entries))
            self.assertNotEqual(kv.address, other.address)
            back = other.load(self.file)
            self.assertEqual([entry[1:] for entry in back], [entry[1:] for entry in entries])
            self.assertTrue(has_sequences(other, back))
            self.assertEqual(other.stats()["memory_bytes"], kv.stats()["memory_bytes"])
            # A hit.
            fork = other.fork(back[1][0], 256)
            step(other)
            self.assertTrue(has_tokens(other, fork, 0, 256, "prompt"))
            for sequence in (fork, back[0][0], back[1][0]):
                other.remove(sequence)
            self.assertEqual(other.stats()["sequences"], 0)

    def test_ids_of_reused_slots_are_known(self):
        with sequence_arena() as kv:
            for _ in range(3):
                kv.remove(kv.add())  # the next one has its slot
            entries = filled_sequences(kv)
            self.assertGreater(entries[1][0], 2**32)
            kv.save(self.file, entries)
            for sequence, _, _ in entries:
                kv.remove(sequence)
            step(kv)
            back = kv.load(self.file)
            self.assertTrue(has_sequences(kv, back))
            self.assertFalse({entry[0] for entry in back} & {entry[0] for entry in entries})

    def test_another_process_loads(self):
        with sequence_arena() as kv:
            kv.save(self.file, filled_sequences(kv))
        said = self.run_python("""
            import sys
            import kv_prefix_cache_test as tests
            with tests.sequence_arena() as first, tests.sequence_arena() as kv:
                entries = kv.load(sys.argv[1])
                assert tests.has_sequences(kv, entries)
                print([entry[2] for entry in entries])
        """, self.file)
        self.assertEqual(said.strip(), repr([key_of(1), key_of(2)]))

    def test_options_of_images(self):
        with sequence_arena() as kv:
            entries = filled_sequences(kv)
            kv.save(self.file, entries, compression="lz4")
            self.assertRaises(FileExistsError, kv.save, self.file, entries)
            done = kv.save(self.path("child.smi"), entries, parent=self.file)
            self.assertEqual(done["parent_chunks"], 6)
            self.assertRaises(stillmap.BusyError, kv.save, self.file, entries, replace=True)
            kv.save(self.file, entries, replace=True, force=True)
            self.assertRefused(stillmap.InvalidArgumentError, "KVSequenceArena.save", "rar", kv.save, self.path("x"),
                               entries, compression="rar")

    def test_what_cannot_be_saved(self):
        with sequence_arena() as kv:
            entries = filled_sequences(kv)
            (answer, _, _), (prompt, _, _) = entries
            gone = kv.add()
            kv.remove(gone)
            capacity = kv.capacity(prompt)
            refused = lambda text, given, **numbers: self.assertRefused(
                stillmap.InvalidArgumentError, "KVSequenceArena.save", text, kv.save, self.file, given, **numbers)
            refused("no such sequence", [(gone, 0, b"")], value=gone % 2**32)
            refused("twice", entries + entries[:1], value=answer % 2**32)
            refused("memory", [(prompt, capacity + 1, b"")], value=capacity + 1, limit=capacity)
            refused("fork", [(answer, 320, b""), (prompt, 200, b"")], value=200)
            refused("key", [(prompt, 300, bytes(4097))], value=4097, limit=4096)
            kv.reserve(prompt, 1000)
            kv.prepare()
            self.assertRefused(stillmap.BusyError, "KVSequenceArena.save", "begin_step", kv.save, self.file, entries)
            kv.begin_step()
            for wrong in (None, [3], [(prompt, b"")], [(prompt, -1, b"")], [(-1, 3, b"")], [(prompt, 3, "text")]):
                self.assertRaises(TypeError, kv.save, self.file, wrong)
        self.assertRefused(stillmap.InvalidArgumentError, "KVSequenceArena", "closed", kv.save, self.file, entries)
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_cannot_be_loaded(self):
        with sequence_arena() as kv:
            kv.save(self.file, filled_sequences(kv))
        with block_arena() as kv:
            kv.save(self.path("blocks.smi"), filled(kv))

        def refused(kind, text, kv, path=self.file, **numbers):
            self.assertRefused(kind, "KVSequenceArena.load", text, kv.load, path, **numbers)
        for options in (dict(longest=2048), dict(sequences=9), dict(layers=8), dict(layers_per_range=4)):
            with sequence_arena(**options) as kv:
                refused(stillmap.InvalidArgumentError, "another shape", kv)
        with sequence_arena(tag="another") as kv:
            refused(stillmap.InvalidArgumentError, "another tag", kv)
        with sequence_arena() as kv:
            refused(stillmap.InvalidArgumentError, "no prefix cache", kv, self.path("blocks.smi"))
            self.assertRaises(FileNotFoundError, kv.load, self.path("none"))
            sequence = kv.add()
            refused(stillmap.BusyError, "has sequences", kv, value=1)
            kv.reserve(sequence, 10)
            kv.prepare()
            kv.remove(sequence)
            refused(stillmap.BusyError, "begin_step", kv)
            kv.begin_step()
            self.assertTrue(has_sequences(kv, kv.load(self.file)))
        self.damage()
        with sequence_arena() as kv:
            error = self.assertRaisesSaying(stillmap.CorruptError, self.file, kv.load, self.file)
            self.assertEqual(error.operation, "KVSequenceArena.load")
            self.assertEqual(kv.stats()["sequences"], 0)
        self.assertRefused(stillmap.InvalidArgumentError, "KVSequenceArena", "closed", kv.load, self.file)


if __name__ == "__main__":
    unittest.main()
