"""A KV cache of vLLM's unmodified wheel that follows the load, on a model of random weights.

No kernel runs on hostcuda. So vLLM schedules, queues and frees as always (its asynchronous scheduler, its model runner with
captured graphs), but the tokens are made up, and what the cache holds is written and read by copies: each block gets bytes
of its own when vLLM allocates it, and has them as long as vLLM may read it.
"""

import json
import os
import types
import unittest

from processes import TestCase, needs, torch_needs
from vllm_test import CONFIG

ENGINE = """
import collections, gc, random, sys, torch, types
from concurrent.futures import Future
import stillmap, stillmap.vllm
stillmap.vllm.register(); stillmap.vllm.register()
from vllm import LLM, SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
MiB = 1 << 20
random.seed(7)

def engine(**options):
    stillmap_options = options.pop("stillmap", None)
    return LLM(sys.argv[1], load_format="dummy", skip_tokenizer_init=True, kv_cache_memory_bytes=256 * MiB, max_model_len=512,
               max_num_seqs=64, max_num_batched_tokens=2048, gpu_memory_utilization=0.05,
               additional_config={"stillmap": stillmap_options} if stillmap_options else {}, **options)
def core_of(llm):
    return llm.llm_engine.engine_core.engine_core
def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]
def others():
    '''Of the device, without what PyTorch has for activations.'''
    return free() + torch.cuda.memory_reserved()

class Driver:
    '''Makes up the tokens of an engine's steps, writes known bytes into new blocks, and compares them.'''
    def __init__(self, llm):
        self.llm, self.core = llm, core_of(llm)
        self.scheduler, self.executor = self.core.scheduler, self.core.model_executor
        self.manager = self.scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        worker = self.executor.driver_worker
        self.memory = worker._stillmap_cache.memory
        self.caches = worker.worker.model_runner.kv_caches
        self.raw = torch.empty(0, dtype=torch.int8, device="cuda")
        self.raw.set_(self.caches[0].untyped_storage())
        self.serial = 0
        self.of_block, self.of_hash = {}, {}
        self.hits = self.preemptions = self.compared = self.steps = 0
        self.lengths = {}
        self._scheduled = collections.deque()
        self._execute, self._sample = self.executor.execute_model, self.executor.sample_tokens
        self.executor.execute_model, self.executor.sample_tokens = self.execute, self.sample
        preempt = self.scheduler._preempt_request
        def counted(*arguments, **named):
            self.preemptions += 1
            return preempt(*arguments, **named)
        self.scheduler._preempt_request = counted
    def places(self, block):
        '''Where a block's bytes are in each layer's tensor, as the tensors say that vLLM's kernels get.'''
        for t in self.caches:
            page = t[0].numel() * t.element_size()
            at = t.data_ptr() - self.raw.data_ptr() + block * t.stride(0) * t.element_size()
            yield at, page
    def bytes_of(self, serial, layer, page):
        return ((torch.arange(page) * (2 * (serial + layer) + 1) + serial) % 127).to(torch.int8)
    def write(self, block):
        self.serial += 1
        for layer, (at, page) in enumerate(self.places(block)):
            self.raw[at:at + page].copy_(self.bytes_of(self.serial, layer, page))
        self.of_block[block] = self.serial
    def compare(self, block):
        self.compared += 1
        for layer, (at, page) in enumerate(self.places(block)):
            assert torch.equal(self.raw[at:at + page].cpu(), self.bytes_of(self.of_block[block], layer, page)), block
    def blocks_of(self, request_id):
        return self.manager.get_block_ids(request_id)[0]
    def compare_all(self):
        '''All blocks of requests, and all that a later request could hit.'''
        used = {b for r in self.scheduler.running for b in self.blocks_of(r.request_id)}
        cached = {b.block_id for b in self.pool.blocks if b.block_hash is not None}
        for b in used | cached:
            self.compare(b)
        return len(used), len(cached - used)
    def execute(self, scheduled, non_block=False):
        self.steps += 1
        new = {}
        for r in scheduled.scheduled_new_reqs:
            hits = r.num_computed_tokens // 16
            for b in r.block_ids[0][:hits]:  # of another request that had the same tokens
                assert self.of_hash[self.pool.blocks[b].block_hash] == self.of_block[b]
                self.compare(b)
                self.hits += 1
            new[r.req_id] = r.block_ids[0][hits:]
        c = scheduled.scheduled_cached_reqs
        for i, r in enumerate(c.req_ids):
            ids = c.new_block_ids[i]
            if ids is not None:
                skip = c.num_computed_tokens[i] // 16 if r in c.resumed_req_ids else 0
                for b in ids[0][:skip]:
                    self.compare(b)
                new[r] = ids[0][skip:]
        for blocks in new.values():
            for b in blocks:
                assert b != 0
                self.write(b)
        for r in self.scheduler.running:
            for b in self.blocks_of(r.request_id):
                if self.pool.blocks[b].block_hash is not None:
                    self.of_hash[self.pool.blocks[b].block_hash] = self.of_block[b]
        running = [b for r in self.scheduler.running for b in self.blocks_of(r.request_id)]
        for b in random.sample(running, min(4, len(running))):
            self.compare(b)
        if scheduled.total_num_scheduled_tokens:
            self._scheduled.append(scheduled)
        return self._execute(scheduled, non_block=non_block)
    def sample(self, grammar, non_block=False):
        scheduled = self._scheduled.popleft()
        self._sample(grammar, non_block=non_block)
        tokens = {}
        for r, n in scheduled.num_scheduled_tokens.items():
            at = self.scheduler.requests.get(r)
            tokens[r] = [] if at is None or at.is_prefill_chunk else [100 + random.randrange(800)]
        out = ModelRunnerOutput(req_ids=list(tokens), req_id_to_index={r: i for i, r in enumerate(tokens)},
                                sampled_token_ids=list(tokens.values()))
        done = Future()
        done.set_result(out)
        return done if non_block else out
    def add(self, name, prompt, tokens):
        self.lengths[name] = tokens
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt},
                                        SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False))
    def run(self, steps=None):
        while self.llm.llm_engine.has_unfinished_requests() and steps != 0:
            for out in self.llm.llm_engine.step():
                if out.finished:
                    assert len(out.outputs[0].token_ids) == self.lengths.pop(out.request_id.split("-")[0]), out
            steps = None if steps is None else steps - 1
    def rest(self):
        '''The worker of the arena is done.'''
        self.memory.begin_step()
    def figures(self, phase):
        self.rest()
        self.compare_all()
        s = self.memory.arena.stats()
        block = self.memory.placement.bytes_per_block
        row = dict(phase=phase, used=s["used"] - 1, cached=s["cached"], held=s["mapped_bytes"] / MiB,
                   needed=(s["used"] + s["cached"]) * block / MiB, reserved=self.pool.num_gpu_blocks * block / MiB)
        print("| {phase} | {used} | {cached} | {needed:.1f} | {held:.0f} | {reserved:.0f} |".format(**row))
        return types.SimpleNamespace(**row)
def prompt(n):
    return [random.randrange(900) for _ in range(n)]
"""

LOAD = """
llm = engine(stillmap={"kv_cache": "grow", "kv_cached": "16M", "kv_spare": "2M"}, **ENGINE_OPTIONS)
d = Driver(llm)
group = d.memory.arena.layout["group_bytes"] / MiB
assert group == GROUP, group
unused = d.pool.null_block
assert unused.block_id == 0
d.rest()
start, before = d.figures("start"), others()
assert start.used == start.cached == 0 and start.held <= 2 * group, start

# A load that rises.
for i in range(4):
    d.add(f"long{i}", prompt(320), 150)
d.run(6)
low = d.figures("4 requests")
assert low.used >= 4 * 20 and low.needed <= low.held <= low.needed + 2 + 3 * group, low
# A graph that reads a block of a request that stays.
stays = d.blocks_of(d.scheduler.running[0].request_id)[0]
at, page = next(d.places(stays))
copy = torch.empty(page, dtype=torch.int8, device="cuda")
graph = torch.cuda.CUDAGraph()
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.graph(graph, stream=stream):
    copy.copy_(d.raw[at:at + page])
prompts = [prompt(400) for _ in range(60)]
for i, p in enumerate(prompts):
    d.add(f"short{i}", p, 50)
while d.scheduler.waiting:
    d.run(1)
high = d.figures("64 requests")
assert high.used > 60 * 20 and high.needed <= high.held <= 1.15 * high.needed + 2 + 3 * group, high

# It falls: four requests are left, and of the others' prompts what kv_cached allows.
while len(d.scheduler.running) > 4 or d.scheduler.waiting:
    d.run(1)
d.run(2)
fallen = d.figures("4 requests are left")
assert fallen.used < 4 * 32 and fallen.cached * d.memory.placement.bytes_per_block <= 16 * MiB, fallen
assert fallen.held <= fallen.needed + 2 + FRAGMENTS * group and fallen.held < high.held * .6, (fallen, high)
assert d.blocks_of(d.scheduler.running[0].request_id)[0] == stays
copy.zero_()
graph.replay()
torch.cuda.synchronize()
assert torch.equal(copy.cpu(), d.bytes_of(d.of_block[stays], 0, page)), "the captured graph reads the same bytes"

d.run()
idle = d.figures("idle")
assert idle.used == 0 and idle.needed <= 16.1 and idle.held <= idle.needed + 2 + FRAGMENTS * group, idle
assert others() >= before - (idle.held + 8) * MiB, "the device has the rest"

# The prefix cache after the cache has shrunk.
hits = d.hits
for i, p in enumerate(prompts):
    d.add(f"again{i}", p, 4)
d.run()
assert d.hits - hits >= 16, (d.hits, hits)
d.figures("the same prompts again")

# The device has no memory: requests wait and are preempted, and no bytes are lost.
d.llm.reset_prefix_cache()
empty = d.figures("prefix cache reset")
assert empty.cached == 0 and empty.held <= 2 + 2 * group, empty
torch.cuda.empty_cache()
# Requests take memory for their activations, too: PyTorch keeps 64 MiB for them.
room = torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
hoard = torch.empty(free() - 28 * MiB, dtype=torch.uint8, device="cuda")
del room
for i in range(64):
    d.add(f"pressed{i}", prompt(400), 100)
d.run(40)
pressed = d.figures("64 requests, 28 MiB")
assert pressed.held <= 28 + empty.held and len(d.scheduler.waiting) > 0, (pressed, empty)
d.run()
assert d.preemptions > 0 and not d.lengths, "requests were preempted, and all have ended"
del hoard
torch.cuda.empty_cache()
for i in range(64):
    d.add(f"after{i}", prompt(400), 50)
while d.scheduler.waiting:
    d.run(1)
after = d.figures("64 requests, memory again")
assert after.used > 60 * 20, after
d.run()
d.figures("idle")
print("steps:", d.steps, "blocks written:", d.serial, "compared:", d.compared, "hits:", d.hits, "preemptions:", d.preemptions,
      "waits:", d.memory.waits)
"""


@needs("vllm")
class KVCache(TestCase):
    preamble = ENGINE

    def setUp(self):
        super().setUp()
        self.model = self.path("model")
        os.mkdir(self.model)
        with open(os.path.join(self.model, "config.json"), "w") as f:
            json.dump(CONFIG, f)

    def engine(self, code, **environment):
        return self.program(code, self.model, timeout=900, quiet=False, VLLM_NO_USAGE_STATS="1",
                            VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_FLASHINFER_SAMPLER="0", HF_HUB_OFFLINE="1",
                            **environment)

    # vLLM's own layout: each layer is contiguous, and a page group is a page of each layer.
    def test_it_follows_the_load_under_captured_graphs(self):
        print(self.engine("""
ENGINE_OPTIONS = dict(enforce_eager=False, compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY",
                                                               "cudagraph_capture_sizes": [1, 2, 4]})
GROUP, FRAGMENTS = 4, 5
""" + LOAD + """
# Another engine of the same process, without the option, has vLLM's own cache and scheduler.
del d, llm
gc.collect()
plain = engine(enforce_eager=True)
core = core_of(plain)
assert type(core.scheduler).__module__.startswith("vllm."), type(core.scheduler)
assert type(core.scheduler.kv_cache_manager.block_pool.free_block_queue).__module__.startswith("vllm.")
assert "_stillmap_cache" not in vars(core.model_executor.driver_worker)
for wrong, words in (({"kv_cache": "shrink"}, "'shrink'"), ({"kv_cache": "grow", "kv_cache_max": 1}, "'kv_cache_max'")):
    try:
        engine(stillmap=wrong)
        raise AssertionError("accepted")
    except ValueError as e:
        assert words in str(e), e
"""))

    # The layout with the block outermost, where a page group is one page.
    def test_with_the_block_outermost(self):
        print(self.engine("""
ENGINE_OPTIONS = dict(enforce_eager=True)
GROUP, FRAGMENTS = 2, 6
""" + LOAD, VLLM_KV_CACHE_LAYOUT="BLNHC"))


class Options(unittest.TestCase):
    def test_options(self):
        from stillmap.vllm import CacheOptions
        from stillmap.vllm import Options as SleepOptions

        self.assertIsNone(CacheOptions.read(None))
        self.assertIsNone(CacheOptions.read({"store": "file"}))
        self.assertEqual(CacheOptions.read({"kv_cache": "grow"}), CacheOptions())
        self.assertEqual(CacheOptions.read({"store": "file", "kv_cache": "grow", "kv_cached": "4G", "kv_spare": 5}),
                         CacheOptions("grow", 4 << 30, 5))
        self.assertEqual(SleepOptions.read({"store": "file", "kv_cache": "grow"}), SleepOptions("file"))
        for wrong in ({"kv_cache": "shrink"}, {"kv_cached": "4G"}, {"kv_cache": "grow", "kv_cached": "4X"},
                      {"kv_cache": "grow", "kv_spare": -1}, {"kv_cache": "grow", "kv_more": 1}):
            with self.assertRaises(ValueError):
                CacheOptions.read(wrong)


MEMORY = """
import random, torch, stillmap
from stillmap.vllm.kv_cache.memory import CacheMemory
from stillmap.vllm.kv_cache.placement import Placement
random.seed(3)
MiB = 1 << 20

class Counted:
    '''An arena that counts the calls that look at all of its blocks.'''
    def __init__(self, arena):
        self._arena, self.walks = arena, 0
    def __getattr__(self, name):
        return getattr(self._arena, name)
    def committed_ranges(self):
        self.walks += 1
        return self._arena.committed_ranges()
    def committed(self):
        return {b for first, n in self._arena.committed_ranges() for b in range(first, first + n)}

# Two blocks share a page in each of two regions.
m = CacheMemory(Placement(48, 2, MiB, False), 4, torch.device("cuda", 0))
arena = m.arena = Counted(m.arena)
def places(block):
    return [m.buffer[r * m.region_bytes + block * MiB:][:MiB] for r in range(2)]
def compare(block):
    for p in places(block):
        assert (p.cpu() == value.get(block, 0)).all(), (block, p[0].item(), value.get(block, 0))
value, used = {}, []  # what a block was given since it has memory; 0 where nothing
compare(0)
for step in range(60):
    m.begin_step()
    for block in random.sample(used, min(2, len(used))):
        compare(block)
    n = random.randrange(8)
    if n and (m.free >= n or (m.used + m.cached + n < 48 and m.grow(n))):
        for block in arena.allocate(n):
            compare(block)
            value[block] = step % 100 + 1
            for p in places(block):
                p.copy_(torch.full((MiB,), value[block], dtype=torch.int8))
            used.append(block)
    if step % 20 > 12 or len(used) > 30:
        random.shuffle(used)
        some = random.randrange(len(used) + 1)
        arena.release(used[some:])
        del used[some:]
    assert m.used == len(used)
    m.prepare(random.choice((0, 0, 4, 10)))
    with_memory = arena.committed()
    value = {b: v for b, v in value.items() if b in with_memory}
for block in used:
    compare(block)
arena.release(used)
assert m.used == 0 and m.waits > 0
# A page that is given up behind queued work, and wanted again at once, comes back with what it held.
assert m.grow(20)
old = arena.allocate(20)
for block in old:
    for p in places(block):
        p.copy_(torch.full((MiB,), 101, dtype=torch.int8))
value.update(dict.fromkeys(old, 101))
arena.release(old)
source, target = (places(old[i])[0] for i in (0, 1))
for _ in range(300):
    target.copy_(source)
m.prepare(0)
value = {b: v for b, v in value.items() if b in arena.committed()}
assert len(value) <= 8
m.prepare(20)
m.begin_step()
again = arena.allocate(20)
for block in again:
    compare(block)
arena.release(again)
# Where nothing changes, a step looks at no block.
for i in range(5):
    m.begin_step()
    m.prepare(4)
    if i == 2:
        arena.walks = 0
assert arena.walks == 0, arena.walks
"""


@needs("torch")
@torch_needs(2, 15, "zero_() of earlier versions is a kernel, which hostcuda skips")
class Memory(TestCase):
    def test_new_blocks_are_zeros_and_used_ones_stay(self):
        self.assertEqual(self.program(MEMORY), "")


EVICTION = """
import torch, types
from stillmap.vllm.kv_cache.free_blocks import FreeBlocks
from stillmap.vllm.kv_cache.memory import CacheMemory
from stillmap.vllm.kv_cache.placement import Placement

class Pool:
    num_gpu_blocks = 16
    blocks = [types.SimpleNamespace(block_id=i) for i in range(16)]
    evicted = []
    def _maybe_evict_cached_block(self, block):
        self.evicted.append(block)

# A block has a page of its own, so single blocks are evicted.
pool = Pool()
memory = CacheMemory(Placement(16, 1, 2 << 20, True), 1, torch.device("cuda", 0))
free = FreeBlocks(pool, memory, most_cached=16, evicted_at_once=1)
free.popleft_n(1)
for order in (1, -1):  # of the blocks' numbers in a prompt
    blocks = sorted(free.popleft_n(12), key=lambda b: order * b.block_id)
    free.prepend_n(blocks[::-1])
    first, second = free.popleft_n(6), free.popleft_n(6)
    assert first + second == blocks, "the arena gives out first what was released last"
    for prompt in (first, second):
        free.append_n(prompt[::-1])  # as vLLM does
    assert memory.cached == 12 and memory.free == 0
    free._evict(4)
    assert pool.evicted == first[:1:-1], (first, pool.evicted)
    free._evict(8)
    pool.evicted.clear()
"""


@needs("torch")
class Eviction(TestCase):
    def test_the_end_of_the_oldest_prompt_goes_first(self):
        self.assertEqual(self.program(EVICTION), "")


@needs("vllm")
class Refused(unittest.TestCase):
    def test_what_cannot_grow_is_refused(self):
        from stillmap.vllm.kv_cache.engine import _check

        def configuration(**changes):
            values = {"world_size": 1, "distributed_executor_backend": "uni", "enable_dbo": False, "enable_sleep_mode": False,
                      "kv_transfer_config": None, "speculative_config": None, **changes}
            at = types.SimpleNamespace(**values)
            return types.SimpleNamespace(parallel_config=at, model_config=at, kv_transfer_config=at.kv_transfer_config,
                                         speculative_config=at.speculative_config)

        _check(configuration())
        for changes, words in (({"world_size": 2}, "2 workers"), ({"distributed_executor_backend": "mp"}, "'mp'"),
                               ({"enable_sleep_mode": True}, "enable_sleep_mode"), ({"enable_dbo": True}, "enable_dbo"),
                               ({"kv_transfer_config": 1}, "kv_transfer_config"),
                               ({"speculative_config": 1}, "speculative_config")):
            with self.assertRaisesRegex(ValueError, words):
                _check(configuration(**changes))

    def test_ranges(self):
        from stillmap.vllm.kv_cache.memory import _without

        for now, before, new in (([(0, 4)], [], [(0, 4)]), ([(0, 9)], [(2, 3), (7, 1)], [(0, 2), (5, 2), (8, 1)]),
                                 ([(4, 2), (8, 2)], [(0, 9)], [(9, 1)]), ([(3, 2)], [(3, 2)], []), ([], [(1, 1)], [])):
            self.assertEqual(_without(now, before), new)


if __name__ == "__main__":
    unittest.main()
