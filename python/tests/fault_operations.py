"""The operations of fault_sweep.py: every public call of every Python object that changes something.

Observing an object reads its address, so that what may move it says relocate=True.
"""

import ctypes
import os

import stillmap
from stillmap import _native
from support import MiB, device, driver

PAGE = device()["page_bytes"]
TAG = "swept"


class Operation:
    def __init__(self, call, situation, set_up, run, vmm):
        self.call, self.set, self.run, self.vmm = call, set_up, run, vmm
        self.name = call + (", " + situation if situation else "")


def nothing(bench):
    pass


class Table:
    def __init__(self):
        self.all = []

    def add(self, call, run, set_up=nothing, situation="", vmm=False):
        self.all.append(Operation(call, situation, set_up, run, vmm))


# ---- GrowableBuffer ----

def buffer(pages, filled, **options):
    def set_up(bench):
        made = bench.put("buffer", stillmap.GrowableBuffer(filled * PAGE, reserve=pages * PAGE, tag=TAG, **options))
        for page in range(filled):
            made.copy_from_host(b"page %d" % page, page * PAGE)
    return set_up


def shrunk(bench):
    buffer(8, 4)(bench)
    bench.buffer.resize(PAGE)


def walled_in(bench):
    """The next addresses are taken, where a driver follows hints."""
    buffer(2, 2)(bench)
    bench.put("wall", stillmap.GrowableBuffer(0, reserve=PAGE, hint=bench.buffer.address + 2 * PAGE))


def forked(bench):
    buffer(4, 2)(bench)
    bench.put("copy", bench.buffer.fork())


def keep(bench, name, made):
    bench.put(name, made)


def add_buffers(table):
    call, few = "GrowableBuffer.", buffer(8, 2)
    table.add("GrowableBuffer()", lambda b: keep(b, "made", stillmap.GrowableBuffer(3 * PAGE, tag=TAG,
                                                                                    reserve=8 * PAGE)))
    table.add(call + "resize", lambda b: b.buffer.resize(5 * PAGE, relocate=True), few, "growing")
    table.add(call + "resize", lambda b: b.buffer.resize(5 * PAGE, b.streams[0], relocate=True), few,
              "growing on a stream")
    table.add(call + "resize", lambda b: b.buffer.resize(7 * PAGE, relocate=True), walled_in, "past the reservation")
    table.add(call + "resize", lambda b: b.buffer.resize(7 * PAGE, b.streams[0], relocate=True), walled_in,
              "past the reservation on a stream")
    table.add(call + "reserve", lambda b: b.buffer.reserve(5 * PAGE, relocate=True), few)
    table.add(call + "shrink_to_fit", lambda b: b.buffer.shrink_to_fit(relocate=True), shrunk)
    table.add(call + "commit", lambda b: b.buffer.commit(4 * PAGE, 2 * PAGE), few, vmm=True)
    table.add(call + "decommit", lambda b: b.buffer.decommit(PAGE, PAGE), few, vmm=True)
    table.add(call + "copy_from_host", lambda b: b.buffer.copy_from_host(b"new", PAGE), few)
    table.add(call + "copy_to_host", lambda b: b.results.append(b.buffer.copy_to_host(6, PAGE)), few)
    table.add(call + "alias", lambda b: keep(b, "ring", b.buffer.alias(0, PAGE, 2)), few, vmm=True)
    table.add(call + "fork", lambda b: keep(b, "copy", b.buffer.fork()), few)
    table.add(call + "make_writable", lambda b: b.copy.make_writable(0, 2 * PAGE), forked)
    table.add(call + "close", lambda b: b.buffer.close(), few)


# ---- DeviceVector ----

def vector(elements, **options):
    def set_up(bench):
        bench.put("vector", stillmap.DeviceVector("int32", range(elements), tag=TAG, reserve=32 << 20, **options))
    return set_up


def staged(bench):
    vector(1000)(bench)
    for value in range(10):
        bench.vector.append(value)


def batch_full(bench):
    vector(1000)(bench)
    for value in range((128 << 10) // 4):
        bench.vector.append(value)


def roomy(bench):
    staged(bench)
    bench.vector.reserve(4 * MiB, relocate=True)


def extend_from(name):
    return lambda b: b.vector.extend(b.objects[name])


def with_array(bench):
    staged(bench)
    bench.put("array", stillmap.DeviceVector("int32", range(500, 900), tag="array"))


def on_a_stream(bench):
    vector(1000, stream=bench.streams[0])(bench)


def add_vectors(table):
    call, some, few = "DeviceVector.", [7] * 3000, vector(1000)
    many = memoryview(bytes(6 * MiB)).cast("i")
    table.add("DeviceVector()", lambda b: keep(b, "made", stillmap.DeviceVector("int32", some, tag=TAG,
                                                                                reserve=8 * PAGE)))
    table.add(call + "append", lambda b: b.vector.append(5), few, "the first")
    table.add(call + "append", lambda b: b.vector.append(5), batch_full, "to a full batch")
    table.add(call + "extend", lambda b: b.vector.extend(some), staged)
    table.add(call + "extend", lambda b: b.vector.extend(many, relocate=True), few, "growing")
    table.add(call + "extend", extend_from("array"), with_array, "from device memory")
    table.add(call + "extend", extend_from("vector"), staged, "from itself")
    table.add(call + "insert", lambda b: b.vector.insert(100, some), staged, "in the middle")
    table.add(call + "insert", lambda b: b.vector.insert(100, many, relocate=True), few, "growing")
    table.add(call + "pop", lambda b: b.results.append(b.vector.pop()), staged, "at the end")
    table.add(call + "pop", lambda b: b.results.append(b.vector.pop(3)), staged, "in the middle")
    table.add(call + "erase", lambda b: b.vector.erase(100, 300), staged)
    table.add(call + "clear", lambda b: b.vector.clear(), staged)
    table.add(call + "resize", lambda b: b.vector.resize(2 * MiB, relocate=True), staged, "growing")
    table.add(call + "resize", lambda b: b.vector.resize(2 * MiB, zero=True, relocate=True), on_a_stream,
              "growing on a stream")
    table.add(call + "resize", lambda b: b.vector.resize(10), staged, "shrinking")
    table.add(call + "reserve", lambda b: b.vector.reserve(2 * MiB, relocate=True), staged)
    table.add(call + "shrink_to_fit", lambda b: b.vector.shrink_to_fit(relocate=True), roomy)
    table.add(call + "__setitem__", lambda b: b.vector.__setitem__(3, 99), staged)
    table.add(call + "__getitem__", lambda b: b.results.append(b.vector[3]), staged)
    table.add(call + "tolist", lambda b: b.results.append(sum(b.vector.tolist())), staged)
    table.add(call + "to_host", lambda b: b.results.append(bytes(b.vector.to_host(990))), staged)
    table.add(call + "set_stream", lambda b: b.vector.set_stream(b.streams[1]), staged)
    table.add(call + "flush", lambda b: b.vector.flush(), staged)
    table.add(call + "synchronize", lambda b: b.vector.synchronize(), staged)
    table.add(call + "close", lambda b: b.vector.close(), staged)


def add_views(table):
    """A view that could not be made holds nothing: the object can be closed."""
    def viewed(name, make):
        def run(bench):
            view = make(bench.objects[name])
            del view
            bench.results.append("made")
        return run

    def view_then_close(name, make):
        def run(bench):
            try:
                viewed(name, make)(bench)
            finally:
                bench.objects[name].resize(1)  # BusyError where a view is still counted
                bench.objects[name].resize(PAGE // 4)
        return run
    for owner, name, set_up in (("GrowableBuffer", "buffer", buffer(8, 1)), ("DeviceVector", "vector", staged)):
        table.add(owner + ".__cuda_array_interface__", viewed(name, lambda o: o.__cuda_array_interface__), set_up)
        table.add(owner + ".__dlpack__", viewed(name, lambda o: o.__dlpack__(stream=1)), set_up)


# ---- CachingAllocator ----

def heap(**options):
    def set_up(bench):
        bench.put("heap", stillmap.CachingAllocator(tag=TAG, **options))
        for name, size in (("small", 1000), ("large", 3 * MiB)):
            allocate(bench, name, size)
        bench.write_new_blocks()
    return set_up


def allocate(bench, name, size, stream=None, **options):
    bench.blocks[name] = (bench.heap.allocate(size, stream, **options), size)


def free(bench, name, *stream):
    bench.heap.free(bench.blocks[name][0], *stream)
    del bench.blocks[name]


def cached(bench):
    heap()(bench)
    allocate(bench, "going", 9 * MiB)
    free(bench, "going")


def used_elsewhere(bench):
    heap()(bench)
    bench.heap.record_use(bench.blocks["large"][0], bench.streams[0])


def by_c(bench):
    malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(bench.heap.c_malloc)
    at = malloc(bench.heap.c_param, 5 * MiB, 0)
    if not at:
        raise stillmap.Error(stillmap.last_error())
    bench.blocks["c"] = (at, 5 * MiB)


def set_limit(bench):
    bench.heap.limit = 64 * MiB


def add_heaps(table):
    call, made = "CachingAllocator.", heap()
    table.add("CachingAllocator()", lambda b: keep(b, "made", stillmap.CachingAllocator(tag=TAG)))
    table.add(call + "allocate", lambda b: allocate(b, "new", 100), made, "small")
    table.add(call + "allocate", lambda b: allocate(b, "new", 20 * MiB), made, "large")
    table.add(call + "allocate", lambda b: allocate(b, "new", 4 * MiB, b.streams[0]), made, "on a new stream")
    table.add(call + "allocate", lambda b: allocate(b, "new", 5 * MiB, zero=True), made, "zero")
    table.add(call + "allocate", lambda b: allocate(b, "new", 11 * MiB), cached, "where pages are free")
    table.add(call + "c_malloc", by_c, made)
    table.add(call + "free", lambda b: free(b, "large"), made)
    table.add(call + "free", lambda b: free(b, "large", b.streams[0]), made, "last used on another stream")
    table.add(call + "free", lambda b: free(b, "large"), used_elsewhere, "used on another stream")
    table.add(call + "record_use", lambda b: b.heap.record_use(b.blocks["large"][0], b.streams[0]), made)
    table.add(call + "forget_stream", lambda b: b.heap.forget_stream(b.streams[0]), used_elsewhere)
    table.add(call + "empty_cache", lambda b: b.heap.empty_cache(), cached)
    table.add(call + "trim", lambda b: b.heap.trim(PAGE), cached)
    table.add(call + "limit", set_limit, made)
    table.add(call + "close", lambda b: b.heap.close(), made)
    for name in ("stats", "memory_map", "to_json", "to_torch_pickle", "reset_peaks", "record_history",
                 "stop_history", "mark_iteration"):
        table.add(call + name, lambda b, name=name: getattr(b.heap, name)() and None, made)


# ---- pages for other processes ----

class Shareable:
    """A block whose pages other processes can map, by the functions that PyTorch calls."""

    def __init__(self, nbytes):
        functions = _native._torch_pool("for other processes", None, None, None, None, True)
        self.nbytes = self.capacity = self.reserved = nbytes
        self.address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(functions[0])(
            nbytes, 0, None)
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(functions[1])
        self.pages = _native._export_pages(0, self.address, nbytes)
        self.fds = self.pages.fds(0, 9)

    def stats(self):
        return {"mapped_bytes": 0}

    def copy_to_host(self):
        return driver().read(self.address, self.nbytes)

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.pages, self.fds = None, []
        driver().enter()
        driver().call("cuCtxSynchronize")
        self._free(self.address, self.nbytes, 0, None)
        _native._torch_release_exact("for other processes", 0)


class Imported(Shareable):
    """The same pages, mapped again."""

    def __init__(self, block):
        self.nbytes = self.capacity = self.reserved = block.nbytes
        self.mapped = _native._import_pages(0, block.pages.page_bytes, len(block.fds))
        try:
            for fd in block.fds:
                self.mapped.add(fd)
            self.mapped.map()
        except stillmap.Error:
            self.mapped.close()
            raise
        self.address = self.mapped.address + block.pages.offset

    def close(self):
        self.mapped.close()


def shareable(bench):
    block = bench.put("block", Shareable(3 * PAGE))
    driver().write(block.address, b"shared")


def mapped_twice(bench):
    shareable(bench)
    bench.put("mapped", Imported(bench.block))


def export_again(bench):
    for fd in _native._export_pages(0, bench.block.address, bench.block.nbytes).fds(0, 9):
        os.close(fd)


def unmap(bench):
    bench.mapped.close()
    del bench.objects["mapped"]


def add_pages(table):
    if not device()["posix_fd_export"]:
        return
    table.add("_ExportedPages.fds", export_again, shareable, vmm=True)
    table.add("_ImportedPages.map", lambda b: keep(b, "mapped", Imported(b.block)), shareable, vmm=True)
    table.add("_ImportedPages.close", unmap, mapped_twice, vmm=True)


# ---- KV arenas ----

SHAPE = dict(layers=4, heads=8, dim=128, dtype="float16", tag=TAG)  # two ranges; a page group holds 256 tokens


class Cache:
    """An arena of blocks, and those of a request."""

    def __init__(self, blocks):
        self.arena = stillmap.KVArena(**SHAPE, blocks=64, spare_blocks=0, layers_per_range=2)
        self.address, self.reserved = self.arena.address, self.arena.reserved
        self.blocks = []
        self.grow(blocks)

    def grow(self, blocks):
        """Allocates nothing where memory is short."""
        if not blocks:
            return
        step(self.arena, blocks)
        self.blocks += self.arena.allocate(blocks)

    def settle(self):
        step(self.arena, 0)

    def write(self):
        for block in self.blocks:
            for at in self.places(block):
                driver().write(at, b"block %d" % block)
        return self

    def places(self, block):
        return [self.arena.tensor(layer, 1).address + block * self.arena.layout["block_stride"] for layer in (0, 3)]

    @property
    def nbytes(self):
        return self.arena.stats()["used"]

    @property
    def capacity(self):
        return self.arena.stats()["cached"]

    def entries(self):
        return [(block, b"key") for block in self.blocks]

    def stats(self):
        return {"mapped_bytes": self.arena.stats()["moved_blocks"]}

    def copy_to_host(self):
        return b"".join(driver().read(at, 16) for block in self.blocks for at in self.places(block))

    def close(self):
        self.arena.close()


class Sequences(Cache):
    """An arena of sequences: a prompt, and what was forked."""

    def __init__(self, tokens):
        self.arena = stillmap.KVSequenceArena(**SHAPE, longest=2048, sequences=4, layers_per_range=2, spare_bytes=0)
        self.address, self.reserved = self.arena.address, self.arena.reserved
        self.blocks = []
        if tokens:
            self.blocks.append(self.arena.add())
            self.arena.reserve(self.blocks[0], tokens)
            step(self.arena)

    def settle(self):
        step(self.arena)

    def entries(self):
        return [(each, self.arena.capacity(each), b"key") for each in self.blocks]

    def places(self, block):
        return [self.arena.tensor(block, layer, 1).address + 9 * self.arena.layout["block_stride"] for layer in (0, 3)]

    @property
    def nbytes(self):
        return self.arena.stats()["sequences"]

    @property
    def capacity(self):
        return [self.arena.capacity(each) for each in self.blocks]

    def stats(self):
        return {"mapped_bytes": 0}


def step(arena, *blocks):
    arena.prepare(*blocks)
    if short := arena.begin_step():
        raise stillmap.OutOfMemoryError("%d bytes are short" % short)


def cache(blocks=4, kind=Cache):
    return lambda bench: bench.put("cache", kind(blocks).write())


def released_blocks(bench):
    cache(40)(bench)
    released = [b for b in bench.cache.blocks if b % 16]
    bench.cache.arena.release(released)
    bench.cache.blocks = [b for b in bench.cache.blocks if b % 16 == 0]


def all_released(bench):
    cache(40)(bench)
    bench.cache.arena.release(bench.cache.blocks)
    bench.cache.blocks = []


def compact(bench):
    names = dict(bench.cache.arena.compact(64))
    bench.cache.blocks = [names.get(block, block) for block in bench.cache.blocks]


def reserve_more(bench):
    bench.cache.arena.reserve(bench.cache.blocks[0], 400)
    step(bench.cache.arena)


def fork_sequence(bench):
    arena = bench.cache.arena
    fork = arena.fork(bench.cache.blocks[0], 100)
    try:
        step(arena)
    except BaseException:
        arena.remove(fork)
        step(arena)  # gives back what it has got
        raise
    bench.cache.blocks.append(fork)


def removed_sequence(bench):
    cache(100, Sequences)(bench)
    bench.cache.arena.remove(bench.cache.blocks.pop())


def view_and_close(bench):
    view = bench.cache.arena.tensor(0, 0).__dlpack__(stream=1)
    del view
    bench.cache.close()


def save_cache(bench):
    bench.cache.arena.save(bench.path("cache.smi"), bench.cache.entries())


def saved_cache(blocks=4, kind=Cache):
    def set_up(bench):
        cache(blocks, kind)(bench)
        save_cache(bench)
        bench.cache.close()
        bench.put("cache", kind(0))
    return set_up


def load_cache(bench):
    try:
        bench.cache.blocks = [entry[0] for entry in bench.cache.arena.load(bench.path("cache.smi"))]
    except BaseException:
        bench.cache.settle()  # gives back what it has got
        raise


def add_arenas(table):
    call, few = "KVArena.", cache()
    table.add("KVArena()", lambda b: keep(b, "made", Cache(0)), vmm=True)
    table.add(call + "begin_step", lambda b: b.cache.grow(20), few, "with more blocks", vmm=True)
    table.add(call + "begin_step", lambda b: step(b.cache.arena, 0), all_released, "with fewer blocks", vmm=True)
    table.add(call + "compact", compact, released_blocks, vmm=True)
    table.add(call + "missing_for", lambda b: b.results.append(b.cache.arena.missing_for(60)), few, vmm=True)
    table.add(call + "trim", lambda b: b.cache.arena.trim() and None, all_released, vmm=True)
    table.add(call + "tensor", view_and_close, few, vmm=True)
    table.add(call + "save", save_cache, few, vmm=True)
    table.add(call + "load", load_cache, saved_cache(), vmm=True)
    table.add(call + "close", lambda b: b.cache.close(), few, vmm=True)
    call, few = "KVSequenceArena.", cache(100, Sequences)
    table.add("KVSequenceArena()", lambda b: keep(b, "made", Sequences(0)), vmm=True)
    table.add(call + "begin_step", reserve_more, few, "with more tokens", vmm=True)
    table.add(call + "begin_step", fork_sequence, few, "with a fork", vmm=True)
    table.add(call + "begin_step", lambda b: step(b.cache.arena), removed_sequence, "with fewer tokens", vmm=True)
    table.add(call + "missing_for", lambda b: b.results.append(b.cache.arena.missing_for(999)), few, vmm=True)
    table.add(call + "trim", lambda b: b.cache.arena.trim() and None, removed_sequence, vmm=True)
    table.add(call + "save", save_cache, few, vmm=True)
    table.add(call + "load", load_cache, saved_cache(100, Sequences), vmm=True)
    table.add(call + "close", lambda b: b.cache.close(), few, vmm=True)


# ---- functions ----

def two_kinds(bench):
    buffer(8, 3)(bench)
    heap()(bench)


def away(bench):
    buffer(8, 3)(bench)
    stillmap.suspend(TAG)


def closed_buffer(bench):
    buffer(8, 3)(bench)
    bench.buffer.close()


def saved(bench):
    buffer(8, 3, hint=0x210000000000)(bench)
    stillmap.snapshot(bench.path("image.smi"), TAG)
    bench.buffer.close()


def restored(bench):
    saved(bench)
    bench.put("restored", stillmap.restore(bench.path("image.smi")))


def holding(bench):
    bench.put("holder", stillmap.PublicationHolder(bench.path("holder")))
    buffer(4, 2, exportable=True)(bench)


def claimed(bench):
    holding(bench)
    bench.put("claim", stillmap.attach_or_claim("model", holder=bench.holder.address))


def published(bench):
    holding(bench)
    stillmap.publish("model", TAG, holder=bench.holder.address)


def attached(bench):
    published(bench)
    attach(bench)


def attach(bench, call=stillmap.attach, **options):
    bench.put("memory", call("model", holder=bench.holder.address, relocate=True, **options))


def make_writable(bench):
    bench.memory.make_writable(bench.memory.ranges()[0].address + PAGE, 1)


def add_publications(table):
    table.add("publish", lambda b: stillmap.publish("model", TAG, holder=b.holder.address) and None, holding, vmm=True)
    table.add("publish", lambda b: stillmap.publish("model", TAG, holder=b.holder.address, digests=False) and None,
              holding, "without digests", vmm=True)
    table.add("PublicationClaim.publish", publish_claimed, claimed, vmm=True)
    table.add("attach", attach, published, vmm=True)
    table.add("attach", lambda b: attach(b, verify=True), published, "verified", vmm=True)
    table.add("attach_or_claim", lambda b: attach(b, stillmap.attach_or_claim), published, vmm=True)
    table.add("AttachedMemory.make_writable", make_writable, attached, vmm=True)
    table.add("AttachedMemory.close", lambda b: b.memory.close(), attached, vmm=True)


def publish_claimed(bench):
    """A claim ends also on failure."""
    if bench.claim.closed:
        bench.put("claim", stillmap.attach_or_claim("model", holder=bench.holder.address, wait=10))
    bench.claim.publish(TAG)


def add_functions(table):
    for store in ("pinned_host", "file", "discard"):
        table.add("suspend", lambda b, store=store: stillmap.suspend(TAG, store=store, directory=b.folder) and None,
                  buffer(8, 3), store, vmm=True)
    table.add("serve", lambda b: b.put("server", stillmap.serve()) and None, buffer(8, 3), vmm=True)
    table.add("suspend", lambda b: stillmap.suspend(TAG) and None, two_kinds, "a buffer and an allocator", vmm=True)
    table.add("resume", lambda b: stillmap.resume(TAG) and None, away, vmm=True)
    table.add("forget", lambda b: stillmap.forget(TAG), away, vmm=True)
    table.add("snapshot", lambda b: stillmap.snapshot(b.path("image.smi"), TAG) and None, buffer(8, 3), vmm=True)
    table.add("restore", lambda b: keep(b, "back", stillmap.restore(b.path("image.smi"))), saved, vmm=True)
    table.add("Restored.close", lambda b: b.restored.close(), restored, vmm=True)
    table.add("trim", lambda b: stillmap.trim() and None, closed_buffer, vmm=True)
    table.add("stats", lambda b: stillmap.stats() and None, buffer(8, 1))
    table.add("device_info", lambda b: stillmap.device_info() and None)


def operations():
    table = Table()
    add_buffers(table)
    add_vectors(table)
    add_views(table)
    add_heaps(table)
    add_pages(table)
    add_arenas(table)
    add_functions(table)
    add_publications(table)
    return table.all
