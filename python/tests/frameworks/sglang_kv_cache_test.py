"""A KV cache of SGLang's unmodified wheel that follows the load: its pool, token allocators and radix cache.

No kernel runs on hostcuda. So the requests are made up here, with the calls that SGLang's scheduler makes, and the
allocator keeps its lists on the CPU. Each slot gets bytes of its own by copies through SGLang's tensors when it is
allocated; they are compared while a request or a hit may read them.
"""

import unittest

from processes import TestCase, needs

LOAD = """
import ctypes, random, types, array, torch
import stillmap, stillmap.sglang
MiB = 1 << 20
SIZE, LAYERS, ROW = 32768, 2, 1024
torch.cuda.init()

def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]
def pool_of(page_size=1, post_capture=True):
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    return MHATokenToKVPool(size=SIZE, page_size=page_size, dtype=torch.bfloat16, head_num=8, head_dim=128,
                            layer_num=LAYERS, device="cuda", enable_memory_saver=False, post_capture_active=post_capture)
def finalized(pool, allocator):
    '''As SGLang does when its graphs have been captured.'''
    config = types.SimpleNamespace(max_total_num_tokens=SIZE)
    pool.finalize_backing(config)
    allocator.resize(config)
    return allocator
def fail(name, nth, code):
    library = ctypes.CDLL(stillmap.device_info()["driver_path"])
    library.hostcuda_fail(name.encode(), ctypes.c_uint64(nth), code)

class Bytes:
    '''What each slot of the pool's tensors has to contain.'''
    def __init__(self, pool):
        self.pool, self.tensors = pool, [*pool.k_buffer, *pool.v_buffer]
        self.addresses = [t.data_ptr() for t in self.tensors]
        self.compared = self.written = 0
    def rows(self, contents, buffer):
        return ((contents[:, None] + torch.arange(ROW) * 3 + buffer * 7) % 32000).to(torch.int16)
    def write(self, slots, contents):
        slots, order = torch.sort(slots)
        contents, at = contents[order], 0
        ends = (torch.nonzero(slots[1:] - slots[:-1] != 1).flatten() + 1).tolist() + [len(slots)]
        for end in ends:
            for i, t in enumerate(self.tensors):
                first = int(slots[at])
                t[first:first + end - at].view(torch.int16).view(-1, ROW).copy_(self.rows(contents[at:end], i))
            at = end
        self.written += len(slots)
    def compare(self, slots, contents):
        assert [t.data_ptr() for t in (*self.pool.k_buffer, *self.pool.v_buffer)] == self.addresses
        if not len(slots):
            return
        assert len(slots) == len(set(slots.tolist())) and int(slots.min()) > 0, "a slot has one owner"
        for i, t in enumerate(self.tensors):
            got = t[:int(slots.max()) + 1].cpu().view(torch.int16).view(-1, ROW)
            assert torch.equal(got[slots], self.rows(contents, i)), "bytes of slots have changed"
        self.compared += len(slots)

class Request:
    def __init__(self, number, prompt, tokens):
        self.number, self.prompt, self.tokens = number, prompt, tokens
        self.slots, self.hit, self.node = None, 0, None
    def key(self, n):
        from sglang.srt.mem_cache.radix_cache import RadixKey
        return RadixKey(array.array("q", [self.number * 1000 + i for i in range(n)]))
    def contents(self, first, last):
        return (torch.arange(first, last) + self.number * 401) % 30011

class Server:
    '''The calls of SGLang's scheduler, in its order.'''
    def __init__(self):
        from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.radix_cache import RadixCache
        self.pool = pool_of()
        self.bytes = Bytes(self.pool)
        self.allocator = finalized(self.pool, TokenToKVPoolAllocator(SIZE, torch.bfloat16, "cpu", self.pool, False))
        self.tree = RadixCache(CacheInitParams(disable=False, req_to_token_pool=None, page_size=1,
                                               token_to_kv_pool_allocator=self.allocator))
        self.owner = self.pool._post_capture_owner
        self.pool.move_kv_cache = self.move
        self.moved = 0
        self.waiting, self.running, self.cached = [], [], {}
        self.hits = self.retractions = self.steps = 0
    def move(self, targets, sources):
        '''SGLang's is a kernel: the same by copies.'''
        assert not set(targets.tolist()) & set(sources.tolist())
        for target, source in zip(targets.tolist(), sources.tolist()):
            for t in self.bytes.tensors:
                t[target].copy_(t[source])
        self.moved += len(targets)
    def held(self):
        return self.pool.post_capture_backed_bytes / MiB
    def add(self, request):
        self.waiting.append(request)
        return request
    def prefill(self):
        from sglang.srt.mem_cache.allocation import alloc_token_slots
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        while self.waiting:
            r = self.waiting[0]
            budget = self.allocator.create_prefill_budget(self.tree)
            total = r.prompt + 8
            fits, _ = budget.check_prefill(extend_input_len=r.prompt, total_tokens=total, max_new_tokens=r.tokens,
                                           input_tokens=r.prompt, swa_host_hit_length=0, chunk_limit=None)
            if not fits:
                return
            self.waiting.pop(0)
            match = self.tree.match_prefix(MatchPrefixParams(key=r.key(r.prompt - 1)))
            hit = self.tree.path_device_indices(match.last_device_node)
            self.bytes.compare(hit, r.contents(0, len(hit)))
            r.hit, r.node = len(hit), match.last_device_node
            self.hits += len(hit)
            self.tree.inc_lock_ref(r.node)
            new = alloc_token_slots(self.tree, r.prompt - r.hit)
            self.bytes.write(new, r.contents(r.hit, r.prompt))
            r.slots = torch.cat((hit, new))
            self.running.append(r)
    def retract(self):
        r = self.running.pop()
        self.tree.dec_lock_ref(r.node)
        self.allocator.free(r.slots[r.hit:])
        r.slots = None
        self.waiting.insert(0, r)
        self.retractions += 1
    def finish(self, r):
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams
        self.running.remove(r)
        n = len(r.slots)
        done = self.tree.insert(InsertParams(key=r.key(n), value=r.slots.clone()))
        self.allocator.free(r.slots[r.hit:done.prefix_len])  # another request has cached the same tokens
        self.tree.dec_lock_ref(r.node)
        self.cached[r.number] = max(n, self.cached.get(r.number, 0))
    def step(self):
        from sglang.srt.mem_cache.allocation import alloc_token_slots
        self.steps += 1
        self.prefill()
        while self.running and not self.allocator.check_decode_capacity(num_tokens=len(self.running),
                                                                         tree_cache=self.tree):
            assert len(self.running) > 1
            self.retract()
        if self.running:
            new = alloc_token_slots(self.tree, len(self.running))
            for r, slot in zip(self.running, new.split(1)):
                r.slots = torch.cat((r.slots, slot))
            self.bytes.write(new, torch.cat([r.contents(len(r.slots) - 1, len(r.slots)) for r in self.running]))
        for r in [r for r in self.running if len(r.slots) >= r.prompt + r.tokens]:
            self.finish(r)
        if not self.running and not self.waiting:
            self.idle()
    def idle(self):
        '''What SGLang's scheduler checks when it is idle.'''
        s = self.tree
        assert self.allocator.available_size() + s.evictable_size() + s.protected_size() == SIZE, "a slot is lost"
        assert self.allocator.verify_byte_accounting() == []
    def in_use(self):
        '''All slots of requests, and all of cached prefixes, and what they have to contain.'''
        slots, contents, seen = [], [], set()
        def note(at, what):
            for s, c in zip(at.tolist(), what.tolist()):
                if s not in seen:
                    seen.add(s), slots.append(s), contents.append(c)
        for r in self.running:
            note(r.slots, r.contents(0, len(r.slots)))
        used = len(slots)
        def walk(node, first):
            for child in node.children.values():
                number = child.key.token_ids[0] // 1000
                n = first + len(child.value)
                note(child.value, Request(number, 0, 0).contents(first, n))
                walk(child, n)
        walk(self.tree.root_node, 0)
        return torch.tensor(slots, dtype=torch.int64), torch.tensor(contents, dtype=torch.int64), used
    def figures(self, phase):
        slots, contents, used = self.in_use()
        self.bytes.compare(slots, contents)
        withheld = torch.arange(stillmap.sglang.slots_of(self.allocator).limit + 1, SIZE + 1)
        every = torch.cat((slots, self.allocator.get_all_free_pages(), withheld))
        assert torch.equal(torch.sort(every)[0], torch.arange(1, SIZE + 1)), "each slot is free or in use"
        row = types.SimpleNamespace(phase=phase, used=used, cached=len(slots) - used, held=self.held(),
                                    needed=len(slots) * ROW * 2 * 2 * LAYERS / MiB,
                                    pages=len(set((slots // 1024).tolist()) | {0}) * 2 * 2 * LAYERS)
        print("| {phase} | {used} | {cached} | {needed:.1f} | {held:.0f} | {pages} |".format(**vars(row)))
        return row
    def run(self, until=lambda s: not s.running and not s.waiting):
        while not until(self):
            self.step()

def numbers():
    n = 0
    while True:
        n += 1
        yield n
"""

PHASES = """
random.seed(7)
stillmap.sglang.enable(stillmap.sglang.Options(cached_tokens=2048))
stillmap.sglang.enable(stillmap.sglang.Options(cached_tokens=2048))
before = free()
s = Server()
number = numbers()
group = s.owner.group_bytes / MiB
assert group == 8 and s.owner.group_tokens == 1024
start = s.figures("start")
assert start.held == group and free() >= before - (start.held + 2) * MiB

long = [s.add(Request(next(number), 320, 500)) for _ in range(4)]
for _ in range(6):
    s.step()
low = s.figures("4 requests")
assert low.used >= 4 * 320 and low.needed <= low.held <= low.needed + 2 * group
# A graph that reads a slot of a request that stays.
slot, t = int(long[0].slots[5]), s.pool.k_buffer[0]
copy = torch.empty_like(t[slot])
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.graph(graph, stream=stream):
    copy.copy_(t[slot])

short = [s.add(Request(next(number), random.randrange(100, 400), random.randrange(50, 200))) for _ in range(60)]
for _ in range(40):
    s.step()
high = s.figures("64 requests")
assert high.used > 12000 and high.needed <= high.held <= high.needed + 3 * group, high
s.run(lambda s: len(s.running) <= 4 and not s.waiting)
for _ in range(2):
    s.step()
fallen = s.figures("4 requests are left")
assert fallen.cached <= 2048 * 9 // 8 + 300 and fallen.needed <= fallen.held, fallen
copy.zero_()
graph.replay()
torch.cuda.synchronize()
assert torch.equal(copy.cpu().view(torch.int16).view(1, -1), s.bytes.rows(long[0].contents(5, 6), 0)), "the graph reads its slot"
s.run()
idle = s.figures("idle")
assert 0 < idle.cached <= 2048 and idle.held <= idle.needed + 2 * group and s.moved > 0, idle
given = stillmap.sglang.slots_of(s.allocator).shrink(s.tree, 0)
empty = s.figures("shrink(tree)")
assert empty.cached == 0 and empty.held == group, empty
assert free() >= before - (group + 8) * MiB, "the device has the rest"

# Another rise; a hit after the cache has shrunk.
again = [Request(r.number, r.prompt, 4) for r in short]
for r in again:
    s.add(r)
s.run()
hits = s.hits
for r in again[-3:]:
    s.add(Request(r.number, r.prompt, 4))
s.run()
assert s.hits > hits, "cached prefixes are hit"
s.figures("the same prompts again")

# flush_cache: what SGLang calls.
s.tree.reset()
s.allocator.clear()
assert s.figures("flushed").held == group

# The device has no memory.
hoard = torch.empty(free() - 34 * MiB, dtype=torch.uint8, device="cuda")
for i in range(40):
    s.add(Request(next(number), random.randrange(100, 400), random.randrange(100, 200)))
for _ in range(60):
    s.step()
pressed = s.figures("40 requests, 32 MiB more")
assert pressed.held <= 32 + group and s.waiting, pressed
s.run()
assert s.retractions > 0 and not s.waiting
s.figures("all have ended")
del hoard
torch.cuda.empty_cache()

# A driver call fails in the middle, and then it does not.
def unchanged_by(call, kinds):
    held, available, now = s.held(), s.allocator.available_size(), free()
    try:
        result = call()
        assert None in kinds and result is None, result
    except stillmap.Error as e:
        assert type(e) in kinds, e
    assert (s.held(), s.allocator.available_size()) == (held, available) and free() == now
    s.figures("failed")
s.add(Request(next(number), 300, 100))
for _ in range(3):
    s.step()
for name, code, kinds in (("cuMemCreate", 2, (None,)), ("cuMemCreate", 999, (stillmap.Error,)), ("cuMemMap", 999, (stillmap.Error,)),
                          ("cuMemSetAccess", 999, (stillmap.Error,))):
    for nth in (1, 3):
        fail(name, nth, code)
        unchanged_by(lambda: s.allocator.alloc(6000), kinds)
        fail(name, 0, 0)
taken = s.allocator.alloc(6000)
s.bytes.write(taken, torch.arange(6000))
s.bytes.compare(taken, torch.arange(6000))
s.allocator.free(taken)
slots = stillmap.sglang.slots_of(s.allocator)
held = s.held()
fail("cuMemUnmap", 3, 999)
try:
    slots.shrink()
    raise AssertionError("an unmap that fails is an error")
except stillmap.Error:
    pass
fail("cuMemUnmap", 0, 0)
partly = s.figures("an unmap failed")
assert partly.held > low.held - 2 * group
taken = s.allocator.alloc(6000)  # the buffers become equally long again
s.bytes.write(taken, torch.arange(6000))
s.bytes.compare(taken, torch.arange(6000))
s.allocator.free(taken)
s.run()
slots.shrink(s.tree, 0)
assert s.figures("shrink(tree)").held == group

now = free()
s.pool._clear_buffers()
assert free() >= now + group * MiB, "the pool's memory is given back"
print("steps:", s.steps, "slots written:", s.bytes.written, "compared:", s.bytes.compared, "hits:", s.hits, "moved:", s.moved, "retractions:", s.retractions)
"""

PAGED = """
random.seed(7)
stillmap.sglang.enable(stillmap.sglang.Options())
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
pool = pool_of(16)
bytes_ = Bytes(pool)
a = PagedTokenToKVPoolAllocator(SIZE, 16, torch.bfloat16, "cpu", pool, False)
a.use_triton_kernels = False  # SGLang's own path without them
finalized(pool, a)
held = lambda: pool.post_capture_backed_bytes / MiB
assert held() == 8, held()
of = {}
def tensors(*n):
    return torch.tensor(n, dtype=torch.int64)
def note(r, new):
    first = len(of.get(r, ()))
    of[r] = torch.cat((of[r], new)) if first else new
    bytes_.write(new, (torch.arange(first, first + len(new)) + r * 401) % 30011)
def compare():
    if of:
        bytes_.compare(torch.cat(list(of.values())), torch.cat([(torch.arange(len(v)) + r * 401) % 30011 for r, v in of.items()]))
for r in range(40):
    n = random.randrange(100, 400)
    zero, end = tensors(0), tensors(n)
    note(r, a.alloc_extend(zero, zero, end, end, tensors(-1), n))
for _ in range(50):
    lens = tensors(*(len(of[r]) + 1 for r in of))
    new = a.alloc_decode(lens, lens, torch.stack([of[r][-1] for r in of]))
    for r, slot in zip(list(of), new.split(1)):
        note(r, slot)
compare()
high, used = held(), sum(map(len, of.values()))
assert used * 8192 / MiB <= high <= used * 8192 / MiB * 1.1 + 16, (high, used)
for r in range(4, 40):
    a.free(of.pop(r))
assert a.available_size() + sum(-(-len(v) // 16) * 16 for v in of.values()) == SIZE
a.verify_byte_accounting()
compare()
low = held()
assert low <= high, low
for r in list(of):
    a.free(of.pop(r))
a.verify_byte_accounting()
assert held() == 8 and a.available_size() == SIZE
pages = torch.cat((a.get_all_free_pages(), torch.arange(stillmap.sglang.slots_of(a).limit + 1, SIZE // 16 + 1)))
assert torch.equal(torch.sort(pages)[0], torch.arange(1, SIZE // 16 + 1)), "each page is free once"
print("paged: %d slots: %.0f MiB, 4 requests left: %.0f, idle: %.0f" % (used, high, low, held()))
"""


@needs("sglang")
class KVCache(TestCase):
    preamble = LOAD

    def sglang(self, code, **environment):
        print(self.program(code, timeout=900, quiet=False, SGLANG_ENABLE_POST_CAPTURE_KV_SIZING="1", **environment))

    def test_it_follows_the_load(self):
        self.sglang(PHASES)

    def test_pages_of_slots(self):
        self.sglang(PAGED)

    def test_several_ranks_are_refused(self):
        self.sglang("""
from unittest import mock
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
stillmap.sglang.enable(stillmap.sglang.Options())
pool = pool_of()
allocator = TokenToKVPoolAllocator(SIZE, torch.bfloat16, "cpu", pool, False)
with mock.patch.object(torch.distributed, "is_initialized", return_value=True), \\
        mock.patch.object(torch.distributed, "get_world_size", return_value=2):
    try:
        finalized(pool, allocator)
    except RuntimeError as refused:
        assert "2 ranks" in str(refused), refused
    else:
        raise AssertionError("two ranks are accepted")
""")

    # Without ours: SGLang's pools, as they are.
    def test_beside_sglangs_own(self):
        self.sglang("""
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
before = free()
pool = pool_of(post_capture=False)
allocator = TokenToKVPoolAllocator(SIZE, torch.bfloat16, "cpu", pool, False)
held = (before - free()) / MiB
taken = allocator.alloc(20000)
allocator.free(taken)
assert (before - free()) / MiB == held >= 256
print("SGLang's own: %.0f MiB at any load" % held)
assert stillmap.sglang.slots_of(allocator) is None
""")


class Options(unittest.TestCase):
    def test_options(self):
        from stillmap.sglang import Options

        self.assertIsNone(Options.read({}))
        self.assertEqual(Options.read({"STILLMAP_SGLANG_KV_CACHE": "grow"}), Options())
        self.assertEqual(Options.read({"STILLMAP_SGLANG_KV_CACHE": "grow", "STILLMAP_SGLANG_KV_CACHED": "4096"}),
                         Options(4096))
        for wrong in ({"STILLMAP_SGLANG_KV_CACHE": "shrink"},
                      {"STILLMAP_SGLANG_KV_CACHE": "grow", "STILLMAP_SGLANG_KV_CACHED": "4G"}):
            with self.assertRaises(ValueError):
                Options.read(wrong)


if __name__ == "__main__":
    unittest.main()
