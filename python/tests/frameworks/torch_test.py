"""stillmap.torch in PyTorch's unmodified wheel. Kernels need not run: contents come and go by copies."""

import textwrap
import unittest

from processes import TENSORS, TestCase, needs, torch_needs

@needs("torch")
class Pool(TestCase):
    preamble = TENSORS

    def test_suspends_and_resumes_beside_the_native_allocator(self):
        self.program("""
        pool = st.pool("kv")
        outside = filled(8 * MiB, 5)
        with pool.use():
            kept = [filled(40 * MiB, seed) for seed in range(3)]
        assert torch.cuda.memory_allocated() >= 128 * MiB, "PyTorch's own statistics count the pool"
        assert {t.data_ptr() for t in kept} <= {s["address"] for s in torch.cuda.memory_snapshot()}
        assert {t.data_ptr() for t in kept} == {s["address"] for s in pool.segments()}
        addresses = [t.data_ptr() for t in kept]
        for options in ({}, {"store": "file", "directory": sys.argv[1]}):
            before = free()
            told = pool.suspend(**options)
            assert told["released_bytes"] >= 120 * MiB and free() - before >= 120 * MiB
            assert [s["tag"] for s in st.suspended()] == ["kv"]
            assert right(outside, 5), "the rest goes on"
            pool.resume()
            assert free() == before
            assert [t.data_ptr() for t in kept] == addresses
            assert all(right(t, seed) for seed, t in enumerate(kept))
        pool.suspend(store="discard")
        pool.resume()
        kept[0].copy_(known(40 * MiB, 9))
        assert right(kept[0], 9), "discarded memory can be written again"
        """, self.folder)

    def test_out_of_memory_is_pytorchs_own(self):
        self.program("""
        pool = st.pool("small", limit=64 * MiB)
        with pool.use():
            kept = filled(40 * MiB)
            try:
                torch.empty(200 * MiB, dtype=torch.uint8, device="cuda")
                raise AssertionError("it fits")
            except torch.OutOfMemoryError as e:
                assert "Tried to allocate 200.00 MiB" in str(e), e
                assert "tag small, device 0" in str(e) and "limit 64 MiB" in str(e), e  # PyTorch does not know why
            try:
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda:0")
                raise AssertionError("it fits")
            except torch.OutOfMemoryError as e:
                assert "tag small" in str(e), e
            again = torch.empty(8 * MiB, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
            raise AssertionError("it fits")
        except torch.OutOfMemoryError as e:
            assert "Stillmap" not in str(e), f"the pool was not asked: {e}"
        assert right(kept)
        """, quiet=False)

    # Regression: PyTorch's MemPool belongs to the device that is current when it is made; on another one it served
    # PyTorch's own memory.
    def test_another_device_is_current(self):
        self.program("""
        def held(tag):
            return st.stats(tag, 1).get("total", {}).get("committed", 0)
        for how in ({}, {"all_threads": True}):
            tag = f"kv{len(how)}"
            kv = st.pool(tag, device=1)
            with kv.use(**how):
                t = torch.empty(12 * MiB, dtype=torch.uint8, device="cuda:1")
            assert held(tag) == 12 * MiB and kv.suspend()["released_bytes"] == 12 * MiB
            kv.resume()
            del t
            kv.empty_cache()
            assert held(tag) == 0
            with kv.use(**how), kv.use(**how):  # each a torch.cuda.MemPool of its own
                t = torch.empty(12 * MiB, dtype=torch.uint8, device="cuda:1")
            assert held(tag) == 12 * MiB and torch.cuda.current_device() == 0
        import warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with kv.use():
                with torch.cuda.device(0):
                    t = torch.empty(MiB, dtype=torch.uint8, device="cuda")
        assert any("nothing was allocated on cuda:1" in str(w.message) for w in told), told
        """, quiet=False, HOSTCUDA="profile=multi:2,kernels=skip,memory=4G")

    def test_memory_that_is_not_the_tags_is_noticed(self):
        self.program("""
        from stillmap.torch import _served
        pool = st.pool("kv")
        with pool.use():
            t = torch.empty(8 * MiB, dtype=torch.uint8, device="cuda")
        del t
        with pool.use():
            t = torch.empty(8 * MiB, dtype=torch.uint8, device="cuda")  # the pool's cache serves it
        own = torch.cuda.MemPool()
        try:
            with _served.checked("kv", 0), torch.cuda.use_mem_pool(own):
                other = torch.empty(8 * MiB, dtype=torch.uint8, device="cuda")
                probe = torch.empty
                torch.empty = lambda *a, **b: other  # what a PyTorch returns that does not serve the pool
            raise AssertionError("not noticed")
        except stillmap.NotSupportedError as e:
            assert "without the tag" in str(e), e
        finally:
            torch.empty = probe
        """)
        for name, value in (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
                            ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")):
            self.program(f"""
            try:
                st.pool("kv")
                raise AssertionError("{name}")
            except stillmap.NotSupportedError as e:
                assert "{name}" in str(e), e
            """, **{name: value})

    @torch_needs(2, 14, "PyTorch keeps its cache when a pool has no memory")
    def test_pytorch_frees_its_cache_for_a_pool(self):
        self.program("""
        total = torch.cuda.mem_get_info()[1]
        hoard = torch.empty(int(total * 0.7), dtype=torch.uint8, device="cuda")
        del hoard  # PyTorch keeps it
        pool = st.pool("kv")
        with pool.use():
            torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda")
        """, quiet=False)

    def test_a_pool_gives_back_what_is_free(self):
        self.program("""
        pool = st.pool("kv")
        kept = []
        for n in range(2):  # the second time some of the memory belongs to a torch.cuda.MemPool that has ended
            with pool.use():
                kept.append(filled(64 * MiB, n))
                dropped = filled(64 * MiB)
                small = filled(4 * MiB)
            before = pool.mem_pool.id
            pool.empty_cache()
            assert pool.mem_pool.id == before, "nothing is free"
            del dropped, small
            with pool.use():
                pool.empty_cache()
                assert pool.mem_pool in pool.mem_pools and pool.mem_pool.id != before
            pool.empty_cache()
            assert sum(s["total_size"] for s in pool.segments()) == (n + 1) * 64 * MiB
        assert right(kept[0], 0) and right(kept[1], 1)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, pool=pool.mem_pool.id, stream=stream):
            inside = torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
            inside.copy_(kept[1])
        pool.empty_cache()
        graph.replay()
        assert right(inside, 1) and pool.segments()
        del inside, graph, kept
        pool.empty_cache()
        assert pool.segments() == []
        """)

    # Regression: PyTorch keeps segments that have lost their tensor, so a pool held twice its weights.
    @torch_needs(2, 15, "tensors have segments of PyTorch's sizes")
    def test_weights_that_are_replaced_by_larger_ones(self):
        self.program("""
        import random
        def held():
            return st.stats("w")["total"]["committed"]
        def tensor(size, n):
            t = torch.empty(size * MiB // 8, dtype=torch.uint8, device="cuda")  # in units of 128 KiB
            t[:1].copy_(torch.tensor([n % 251], dtype=torch.uint8))
            return t
        random.seed(1)
        pool, early = st.pool("w"), torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
        del early  # PyTorch's own cache is left alone
        for before, after in ((18 * 8, 19 * 8), (11 * 8 + 1, 12 * 8 + 3), (40 * 8, 13 * 8)):
            with pool.use():
                w = [tensor(before, n) for n in range(60)]
                for n in random.sample(range(60), 60):
                    new = tensor(after, n)
                    w[n] = new
                    del new
                live = 60 * after * MiB // 8
                # Of smaller ones, what was held before is given back when the context ends.
                assert after < before or held() <= 1.05 * live + 2 * before * MiB // 8, (held() / live, before, after)
            assert live <= held() <= 1.05 * live, (held() / live, before, after)
            assert sum(s["total_size"] for s in pool.segments()) == live, pool.segments()
            assert torch.cuda.memory_allocated() >= live, "PyTorch's statistics count the pool"
            assert all(int(t[0].cpu()) == n % 251 for n, t in enumerate(w))
            pool.suspend(); pool.resume()
            assert all(int(t[0].cpu()) == n % 251 for n, t in enumerate(w))
            del w
            pool.empty_cache()
            assert held() == 0
        assert torch.cuda.memory_reserved() >= 64 * MiB
        """)

    @torch_needs(2, 15, "tensors have segments of PyTorch's sizes")
    def test_large_tensors_on_streams_threads_and_in_graphs(self):
        self.program("""
        import threading
        pool, side = st.pool("w"), torch.cuda.Stream()
        wrong = []
        def work(seed):
            for n in range(8):
                with pool.use():
                    t = filled((10 + n) * MiB, seed + n)
                    with torch.cuda.stream(side):
                        u = torch.empty_like(t)
                    side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side):
                        u.copy_(t)
                    t.record_stream(side)
                    del t
                    v = filled(12 * MiB, 99)
                if not right(u, seed + n):
                    wrong.append((seed, n))
        threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(3)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert not wrong, wrong
        source = filled(16 * MiB, 3)
        with pool.use():
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            with torch.cuda.graph(graph, stream=stream):  # its memory is the graph's
                middle = source.clone()
                target = middle.clone()
            kept = filled(16 * MiB, 4)
        for seed in (5, 6):
            source.copy_(known(16 * MiB, seed))
            graph.replay()
            torch.cuda.synchronize()
            assert right(target, seed) and right(kept, 4)
        with st.pool("other").use(), pool.use():
            inner = filled(16 * MiB, 7)
        assert st.stats("other")["total"]["live"] < 16 * MiB <= st.stats("w")["total"]["live"] - 16 * MiB
        limited = st.pool("limited", limit=64 * MiB)
        with limited.use():
            try:
                torch.empty(65 * MiB, dtype=torch.uint8, device="cuda")
                raise AssertionError("it fits")
            except torch.OutOfMemoryError as e:
                assert "tag limited" in str(e), e
            for n in range(40):
                t = torch.empty(31 * MiB, dtype=torch.uint8, device="cuda")
                t = torch.empty(33 * MiB, dtype=torch.uint8, device="cuda")
        """, quiet=False)

    def test_tensors_outlive_pools_and_memory_returns(self):
        self.program("""
        import gc
        def make(tag):
            pool = st.pool(tag)
            with pool.use():
                return filled(32 * MiB, 3)
        first = free()
        kept = [make("a"), make("a"), make("b")]
        gc.collect()
        assert all(right(t, 3) for t in kept)
        st.suspend("a"); st.resume("a")
        assert all(right(t, 3) for t in kept)
        del kept
        gc.collect(); torch.cuda.empty_cache()
        assert first - free() <= 8 * MiB, "the pools are gone, and their memory is the device's"
        assert st.stats("a")["total"]["committed"] == 0
        """)

    def test_graphs_replay_after_a_suspension(self):
        self.program("""
        pool = st.pool("graphs")
        with pool.use():
            source, target = filled(8 * MiB, 1), filled(8 * MiB, 2)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, pool=pool.mem_pool.id, stream=stream):
            middle = torch.empty_like(source)
            middle.copy_(source)
            target.copy_(middle)
        for seed in (4, 5):
            source.copy_(known(8 * MiB, seed))
            graph.replay()
            torch.cuda.synchronize()
            assert right(target, seed)
            pool.suspend(); pool.resume()
            assert right(target, seed)
        source.copy_(known(8 * MiB, 6))
        graph.replay()
        torch.cuda.synchronize()
        assert right(target, 6)
        """)

    def test_threads_with_streams(self):
        self.program("""
        import threading
        pools = [st.pool("shared"), st.pool("shared"), st.pool("other")]
        wrong = []
        def work(n):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(20):
                    with pools[n % 3].use():
                        t = filled((1 + i % 5) * MiB // 2, n * 100 + i)
                    stream.synchronize()
                    if not right(t, n * 100 + i):
                        wrong.append((n, i))
                    t.record_stream(torch.cuda.default_stream())
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert not wrong, wrong
        """)

    @torch_needs(2, 14, "of nested pools the outermost serves")
    def test_all_threads(self):
        self.program("""
        import threading
        pool, other = st.pool("train"), st.pool("other")
        def outside():
            return [s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == (0, 0)]
        def take(size, into):
            into.append(torch.empty(size * MiB, dtype=torch.uint8, device="cuda"))
        def in_a_thread(size, into):
            thread = threading.Thread(target=take, args=(size, into))
            thread.start()
            thread.join()
        layer = torch.nn.Linear(1024, 1024).cuda()
        kept, before = [], outside()
        with pool.use(all_threads=True):
            layer(torch.empty(64, 1024, device="cuda")).sum().backward()  # PyTorch's thread allocates the gradients
            in_a_thread(24, kept)
            with other.use():  # the innermost serves, and only this thread
                take(40, kept)
                in_a_thread(26, kept)
        assert outside() == before, (outside(), before)
        assert [s["total_size"] // MiB for s in other.segments()] == [40], other.segments()
        sizes = [s["total_size"] // MiB for s in pool.segments()]  # larger than 24 and 26 in some versions
        assert sum(sizes) >= 24 + 26 and len(sizes) >= 3, sizes
        take(50, kept)
        assert len(outside()) == len(before) + 1, outside()
        pool.suspend()
        for again in (pool, st.pool("train")):
            try:
                with again.use(all_threads=True):
                    raise AssertionError("the pool is suspended")
            except stillmap.BusyError as e:
                assert "resume it first" in str(e), e
        pool.resume()
        # The pool is a graph's too, when it is captured inside.
        graph, x = torch.cuda.CUDAGraph(), filled(MiB)
        with pool.use(all_threads=True), torch.cuda.graph(graph):
            y = x.clone()
        del pool
        graph.replay()
        torch.cuda.synchronize()
        """)

    def test_wrong_use(self):
        self.program("""
        def raises(kind, text, call):
            try:
                call()
            except kind as e:
                assert text in str(e), e
            else:
                raise AssertionError(text)
        raises(stillmap.InvalidArgumentError, "tag is empty", lambda: st.pool(""))
        raises(ValueError, "not a CUDA device", lambda: st.pool("a", device="cpu"))
        raises(stillmap.InvalidArgumentError, "nothing", lambda: st.suspend("nothing"))
        pool = st.pool("a", limit=64 * MiB)
        raises(stillmap.BusyError, "other options", lambda: st.pool("a"))
        with pool.use():
            t = filled(MiB)
        pool.suspend()
        raises(stillmap.BusyError, "suspended already", pool.suspend)
        pool.resume()
        raises(stillmap.InvalidArgumentError, "not suspended", pool.resume)
        raises(ValueError, "'x' is on cpu", lambda: st.snapshot("a.smi", "a", tensors={"x": torch.ones(1)}))
        raises(FileNotFoundError, "none.smi", lambda: st.restore("none.smi"))
        raises(stillmap.BusyError, "in use already", st.use)
        """)


@needs("torch")
class Use(TestCase):
    preamble = TENSORS

    def test_everything_of_the_process(self):
        self.program("""
st.use(limit=8 << 30)
st.use(limit=8 << 30)
assert st.in_use() and st.stats() == {}
t = filled(100 * MiB)
assert st.stats()["total"]["live"] >= 100 * MiB
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    u = t.clone()
t.record_stream(side)
address = t.data_ptr()
st.suspend("torch")
try:
    torch.empty(MiB, device="cuda")
    raise AssertionError("all is suspended")
except RuntimeError as e:
    assert "is suspended" in str(e) and "tag torch" in str(e), e
st.resume("torch")
assert t.data_ptr() == address and right(t)
del t, u
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert st.stats()["total"]["committed"] == 0
try:
    torch.empty(9 << 30, dtype=torch.uint8, device="cuda")
    raise AssertionError("above the limit")
except RuntimeError as e:
    assert str(e).startswith("CUDA out of memory."), e
try:
    st.use()
    raise AssertionError("other options")
except stillmap.BusyError as e:
    assert "other options" in str(e)
assert "requests that failed" in st.memory_summary()
assert st.memory_map().to_svg().startswith("<svg")
try:
    st.pool("a")
    raise AssertionError("PyTorch has no such pools")
except stillmap.NotSupportedError as e:
    assert "use()" in str(e)
""")

    def test_the_smallest_limit_holds(self):
        program = """
        def refused(nbytes):
            try:
                torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            except RuntimeError as e:
                return "limit" in str(e)
            return False
        st.use(**OPTIONS)
        assert refused(513 * MiB) and not refused(500 * MiB)
        torch.cuda.empty_cache()
        for fraction in (0.9, 0.01, 1.0):
            torch.cuda.set_per_process_memory_fraction(fraction)
            assert refused(513 * MiB) and refused(500 * MiB) == (fraction == 0.01), fraction
            torch.cuda.empty_cache()
        assert stillmap.stats()["tags"].keys() <= {TAG}, stillmap.stats()["tags"].keys()
        assert st.stats()["page_size"] == PAGE
        """
        for options, variables in (
                ({"limit": 512 << 20}, {}),
                ({}, {"STILLMAP_TORCH_LIMIT": "512MiB", "STILLMAP_TORCH_TAG": "named"}),
                ({"limit": 512 << 20, "tag": "mine"}, {"STILLMAP_TORCH_LIMIT": "1GiB", "STILLMAP_TORCH_TAG": "named"}),
                ({"limit": 1 << 30, "page_size": 2 << 20}, {"STILLMAP_TORCH_LIMIT": "512MiB",
                                                            "STILLMAP_TORCH_PAGE_SIZE": "8MiB"}),
                ({}, {"STILLMAP_TORCH_LIMIT": "512MiB", "STILLMAP_TORCH_PAGE_SIZE": "8MiB"})):
            with self.subTest(options=options, variables=variables):
                tag = options.get("tag") or variables.get("STILLMAP_TORCH_TAG") or "torch"
                page = 8 << 20 if "page_size" not in options and "STILLMAP_TORCH_PAGE_SIZE" in variables else 2 << 20
                self.program(f"OPTIONS, TAG, PAGE = {options!r}, {tag!r}, {page}\n" + textwrap.dedent(program),
                             **variables)
        self.program("""
        pool = st.pool("kv", limit=1 << 30)
        with pool.use():
            try:
                torch.empty(513 * MiB, dtype=torch.uint8, device="cuda")
                raise AssertionError("above the variable's limit")
            except torch.OutOfMemoryError as e:
                assert "limit 512 MiB" in str(e), e
        """, quiet=False, STILLMAP_TORCH_LIMIT="512MiB")
        self.program("""
        try:
            st.use()
            raise AssertionError("not a limit")
        except stillmap.InvalidArgumentError as e:
            assert "STILLMAP_TORCH_LIMIT" in str(e), e
        """, STILLMAP_TORCH_LIMIT="much")

    def test_a_quota_of_several_processes(self):
        # The other process is another participant here: what it gets, PyTorch's memory has given.
        program = """
        share = sys.argv[1] + "/quota"
        if USES:
            st.use(**OPTIONS)
            kept, cached = filled(64 * MiB, 3), filled(128 * MiB)
            del cached
        else:
            pool = st.pool("kv", **OPTIONS)
            with pool.use():
                kept = filled(64 * MiB, 3)
        other = stillmap.SharedQuota(share, timeout=5)
        torchs = other.stats()["participants"][0]
        assert other.stats()["limit"] == 256 * MiB and torchs["listens"] and torchs["offers"] == ["cached"], torchs
        with other.room(160 * MiB):
            assert other.stats()["own"] == 160 * MiB
            assert right(kept, 3)
        try:
            other.room(224 * MiB).__enter__()
            raise AssertionError("the tensor is kept")
        except stillmap.BusyError as e:
            assert f"process {os.getpid()} holds" in str(e), e
        """
        for uses in (True, False):
            for given in (True, False):
                with self.subTest(uses=uses, given=given):
                    name = self.folder + "/quota"
                    options = {"share": name, "share_limit": 256 << 20} if given else {}
                    variables = {} if given else {"STILLMAP_SHARE": name + ":256MiB"}
                    self.program(f"USES, OPTIONS = {uses!r}, {options!r}\n" + textwrap.dedent(program),
                                 self.folder, **variables)

    def test_pytorchs_statistics(self):
        self.program("""
st.use()
assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() == 0
a, b = filled(64 * MiB), filled(32 * MiB)
assert torch.cuda.memory_allocated() == 96 * MiB
assert torch.cuda.memory_reserved() == st.stats()["total"]["committed"] >= 96 * MiB
del a
assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(0)) == (32 * MiB, 96 * MiB)
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 32 * MiB
assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved() == 32 * MiB
c = filled(8 * MiB)
assert torch.cuda.max_memory_allocated() == 40 * MiB
torch.cuda.reset_accumulated_memory_stats()
stats = torch.cuda.memory_stats()
assert stats["allocation.all.allocated"] == 3 and stats["allocation.all.freed"] == 1, stats
assert stats["num_ooms"] == 0 and stats["requested_bytes.all.current"] == 40 * MiB
assert "40.00 MiB" in torch.cuda.memory_summary(abbreviated=True) or "40960 KiB" in torch.cuda.memory_summary()
if hasattr(torch.accelerator, "memory_allocated"):
    assert torch.accelerator.memory_allocated() == 40 * MiB
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == 40 * MiB
    del c
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == 32 * MiB
""")

    def test_graphs(self):
        self.program("""
st.use()
source, target = filled(4 * MiB, 1), filled(4 * MiB, 2)
graphs = []
for i in range(3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        middle = torch.empty_like(source)
        middle.copy_(source)
        target.copy_(middle)
    graphs.append(graph)
for seed in range(20):
    noise = [filled(3 * MiB, 99) for _ in range(3)]
    source.copy_(known(4 * MiB, seed))
    graphs[seed % 3].replay()
    torch.cuda.synchronize()
    assert right(target, seed)
    if seed == 10:
        st.suspend("torch"); st.resume("torch")
""")

    def test_a_training_loop_is_suspended_and_goes_on(self):
        self.program("""
st.use()
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
with torch.no_grad():
    for i, p in enumerate(model.parameters()):
        p.copy_(torch.full(p.shape, float(i)))
optimizer = torch.optim.Adam(model.parameters())
def step(n):
    model(torch.empty((n, 1024), device="cuda")).sum().backward()
    optimizer.step(); optimizer.zero_grad()
for i in range(10):
    step(64 + i)
at = [p.data_ptr() for p in model.parameters()]
contents = [p.detach().cpu() for p in model.parameters()]
before = free()
released = st.suspend("torch")["released_bytes"]
assert free() - before == released > 100 * MiB
st.resume("torch")
assert at == [p.data_ptr() for p in model.parameters()]
assert all(torch.equal(a, p.detach().cpu()) for a, p in zip(contents, model.parameters()))
for i in range(10):
    step(64 + i)
""")

    def test_data_loader_workers(self):
        self.program("""
if __name__ == "__main__":
    st.use()
    t = filled(MiB)
    data = torch.utils.data.TensorDataset(torch.arange(4000).reshape(400, 10))
    loader = torch.utils.data.DataLoader(data, batch_size=50, num_workers=2)
    for _ in range(2):
        got = [batch[0].cuda().cpu() for batch in loader]
        assert torch.equal(torch.cat(got), torch.arange(4000).reshape(400, 10))
    assert right(t)
""")

    def test_a_forked_child_is_told(self):
        self.program("""
import os
st.use()
t = filled(MiB)
child = os.fork()
if child == 0:
    try:
        stillmap.suspend("torch")
    except stillmap.NotSupportedError:
        os._exit(0)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert right(t)
""")

    def test_exit_with_live_tensors_in_every_order(self):
        for how in ("st.use()", "pool = st.pool('a')"):
            for kept in ("builtins.kept = t", "sys.modules['kept'] = t", "atexit.register(lambda t=t: None)",
                         "del st, stillmap", "del torch", "cycle = [t]; cycle.append(cycle)",
                         "st.suspend('torch' if st.in_use() else 'a')"):
                with self.subTest(how=how, kept=kept):
                    inside = "pool.use()" if "pool" in how else "contextlib.nullcontext()"
                    self.program(f"""
import atexit, builtins, contextlib
{how}
with {inside}:
    t = filled(8 * MiB)
    graph = torch.cuda.CUDAGraph()
{kept}
""")


@needs("torch")
class Devices(TestCase):
    """What works between devices with PyTorch's own allocator works with ours."""

    preamble = TENSORS + """
import contextlib
from torch.nn.parallel import comm
DEVICES = range(torch.cuda.device_count())
def on(device, n=3 * MiB, seed=1):
    with POOLS[device].use() if POOLS else contextlib.nullcontext():
        t = torch.empty(n, dtype=torch.uint8, device=f"cuda:{device}")
    t.copy_(known(n, seed))
    return t
def between_all():
    for a in DEVICES:
        for b in DEVICES:
            x = on(a, seed=a + 1)
            assert right(x.to(f"cuda:{b}"), a + 1), (a, b)
            y = on(b, seed=9)
            y.copy_(x)
            torch.cuda.synchronize(a), torch.cuda.synchronize(b)
            assert right(y, a + 1), (a, b)
            z = torch.empty(1000, dtype=torch.uint8, device=f"cuda:{b}")  # small, and PyTorch's own beside pools
            z.copy_(x[:1000])
            assert right(z, a + 1), (a, b)
            x[:1000].copy_(z)
            assert right(x, a + 1), (a, b)
    parts = comm.scatter(on(0, seed=5), list(DEVICES))
    assert [p.device.index for p in parts] == list(DEVICES)
    assert right(comm.gather(parts, destination=0), 5)
    assert right(comm.gather(parts, destination=len(DEVICES) - 1), 5)
"""

    def test_as_native(self):
        hows = {"native": "POOLS = []", "use()": "POOLS = []; st.use()",
                "use(peers=False)": "POOLS = []; st.use(peers=False)",
                "pool": "POOLS = [st.pool('p', device=d) for d in DEVICES]",
                "pool(peers=False)": "POOLS = [st.pool('p', device=d, peers=False) for d in DEVICES]"}
        for machine in ("multi:2", "multi:4", "multi:2,peers=none"):
            for how, first in hows.items():
                if machine == "multi:4" and "False" in how:
                    continue
                with self.subTest(machine=machine, how=how):
                    self.program(first + "\nbetween_all()", quiet=False,
                                 HOSTCUDA=f"profile={machine},kernels=skip,memory=2G")


@needs("triton")
class Compile(TestCase):
    """torch.compile with PyTorch's own compiler, which builds kernels with Triton."""

    preamble = TENSORS + """
import torch._inductor.config
torch._inductor.config.compile_threads = 1
def train(**how):
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, **how)
    for _ in range(6):
        compiled(torch.empty(64, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return model
"""

    def test_use(self):
        self.program("""
        st.use(tag="train")
        model = train()
        allocated = st.stats()["total"]
        assert allocated["live"] >= sum(p.nbytes for p in model.parameters()), allocated
        st.suspend("train"); st.resume("train")
        train()
        try:
            train(mode="reduce-overhead")
            raise AssertionError("PyTorch has learnt it: change docs/pytorch.md")
        except RuntimeError as e:
            assert "checkPoolLiveAllocations" in str(e), e
        """, quiet=False)

    @torch_needs(2, 14, "a graph's memory goes to the pool around it, and PyTorch checks that it does not")
    def test_graphs_in_a_pool(self):
        self.program("""
        pool = st.pool("train")
        with pool.use(all_threads=True):
            model = train(mode="reduce-overhead")
        owned = {s["address"] for s in pool.segments()}
        pool.suspend(); pool.resume()
        assert owned
        """, quiet=False)


if __name__ == "__main__":
    unittest.main()
