"""stillmap.torch.publish and attach: processes that have one copy of a state dict, at the same addresses."""

import json
import unittest

from processes import TENSORS, TestCase, needs

PREAMBLE = TENSORS + """
import gc, json, multiprocessing, time, traceback, warnings
torch.set_num_threads(1)
def refused(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as e:
        assert text in str(e), e
        return
    raise AssertionError("not refused: " + text)
def eventually(holds):
    for _ in range(4000):
        if holds():
            return
        time.sleep(0.005)
    raise AssertionError("it never happens")
class Net(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.embedding = torch.nn.Embedding(400, 96, device=device)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(96, 96, device=device) for _ in range(3))
        self.norm = torch.nn.BatchNorm1d(96, device=device)
        self.head = torch.nn.Linear(96, 400, bias=False, device=device)
        self.head.weight = self.embedding.weight
def fill(net):
    for i, p in enumerate(net.state_dict().values()):
        p.copy_((known(p.numel(), i) % 100).to(p.dtype).view(p.shape))
    return net
def bits(t):
    return t.detach().cpu().contiguous().view(-1).view(torch.uint8)
def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(bits(a[n]), bits(b[n])) for n in a)
fork = multiprocessing.get_context("fork")
def start(function, *arguments):
    ours, theirs = fork.Pipe()
    process = fork.Process(target=function, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours
def answer(connection):
    assert connection.poll(60), "the process does not answer"
    return connection.recv()
def end(process, connection):
    connection.send("end")
    process.join(30)
    assert process.exitcode == 0, process.exitcode

# Runs code in a process of its own, with the address of a holder that it may create.
def run(name, code):
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    try:
        os.environ["STILLMAP_HOLDER"] = holder = os.path.join(sys.argv[1], name)
        exec(compile(code, name, "exec"), {**globals(), "holder": holder})
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
    os._exit(1)
"""

# PyTorch is imported once: each of these is forked before the device is used, and so are its own processes.
CASES = {}

CASES["one copy for all"] = """
def expected():
    return fill(Net("cpu")).state_dict()
def publisher(connection):
    connection.recv()
    net = fill(Net("cuda"))
    big = filled(12 * MiB, 9)
    values = {**net.state_dict(keep_vars=True), "big": big}
    before = free()
    began = time.perf_counter()
    state = st.publish("net", values, replace=True)
    connection.send((time.perf_counter() - began, {n: t.data_ptr() for n, t in state.items()}, before, free(),
                     state.memory.shared_bytes))
    connection.recv()
def reader(connection):
    what = connection.recv()
    began = time.perf_counter()
    state = st.attach("net", wait=30, verify=what == "verify")
    took = time.perf_counter() - began
    net = Net("cpu")
    big = state.pop("big")
    net.load_state_dict(state, assign=True)
    assert same(net.state_dict(), expected()) and right(big, 9)
    assert net.head.weight is net.embedding.weight or net.head.weight.data_ptr() == net.embedding.weight.data_ptr()
    connection.send((took, {**{n: t.data_ptr() for n, t in net.state_dict().items()}, "big": big.data_ptr()}, free(),
                     os.getpid()))
    while connection.recv() == "write":
        st.make_writable(big)[:5] = torch.zeros(5, dtype=torch.uint8)
        assert torch.equal(big[:5].cpu(), torch.zeros(5, dtype=torch.uint8))
        connection.send(state.memory.private_bytes)
all_of_them = [start(publisher)] + [start(reader) for _ in range(3)]
with stillmap.PublicationHolder(holder) as h:
    (p, to_p), *readers = all_of_them
    to_p.send("publish")
    took, places, before, after, shared = answer(to_p)
    assert abs(before - after) < 4 * MiB, (before, after)   # what was given is given up; pages are whole
    (first, to_first), (second, to_second), (third, to_third) = readers
    times = []
    for process, connection in readers[:2]:
        connection.send("verify" if connection is to_first else "attach")
        seconds, mine, left, pid = answer(connection)
        assert mine == places, "the same addresses"
        assert after - left < 4 * MiB, (after, left)         # the device has the weights once
        times.append(seconds)
    assert sorted(h.publications()[0]["readers"]) == sorted([p.pid, first.pid, second.pid])
    to_second.send("write")
    assert 12 * MiB <= answer(to_second) <= 16 * MiB
    first.kill(); first.join()
    eventually(lambda: first.pid not in h.publications()[0]["readers"])
    end(p, to_p)
    to_third.send("attach")                                   # the killed one, started again
    assert answer(to_third)[1] == places
    end(second, to_second); end(third, to_third)
    print("note: published %d MiB in %.0f ms; attached in %.1f ms, with every byte verified in %.0f ms" % (
        shared >> 20, took * 1e3, times[1] * 1e3, times[0] * 1e3))
"""

CASES["one loads and the others wait"] = """
def task(connection, dies):
    connection.recv()
    def load():
        connection.send("loads")
        if dies:
            os._exit(9)
        time.sleep(0.3)
        return fill(Net("cuda")).state_dict(keep_vars=True)
    state = st.attach_or_load("net", load, wait=60)
    assert same(state, fill(Net("cpu")).state_dict())
    connection.send({n: t.data_ptr() for n, t in state.items()})
    connection.recv()
(dying, to_dying), *others = [start(task, dies) for dies in (True, False, False)]
with stillmap.PublicationHolder(holder) as h:
    to_dying.send("go")
    assert answer(to_dying) == "loads"
    for _, connection in others:
        connection.send("go")
    dying.join(30)
    assert dying.exitcode == 9
    told = [answer(connection) for _, connection in others]
    loaded = told.index("loads") if "loads" in told else None
    assert loaded is not None and told[1 - loaded] != "loads", told
    assert answer(others[loaded][1]) == told[1 - loaded], "the same addresses"
    for each in others:
        end(*each)
"""

CASES["each kind comes back equal"] = """
import tensor_kinds as k
pool = st.pool("kinds")
tensors, refused = {}, {}
for group, name, make in k.kinds(pool):
    with pool.use():
        tensors[name] = make()
with stillmap.PublicationHolder(holder):
    while True:
        try:
            published = st.publish("kinds", {**tensors, "number": 3, "list": [1, {"a": None}]})
            break
        except stillmap.InvalidArgumentError as e:
            name = next(n for n in tensors if f" {n!r} " in str(e))
            refused[name] = str(e)
            del tensors[name]
    attached = st.attach("kinds", relocate=True)
    assert attached.pop("number") == 3 and attached.pop("list") == [1, {"a": None}]
    assert list(attached) == list(tensors)
    expected = {n: k.anatomy(t) for n, t in tensors.items()}
    for n, t in attached.items():
        assert k.anatomy(t) == expected[n], (n, k.anatomy(t), expected[n])
    st.publish("kinds", tensors, replace=True)
    for n, t in tensors.items():
        assert k.anatomy(t) == expected[n], (n, k.anatomy(t), expected[n])
        with torch._C.DisableTorchFunction():
            if t.is_cuda and t.layout is torch.strided and not t.is_nested and t.numel():
                assert st._publication.memory_of(t) is not None, n
    assert "on the CPU" not in refused and len(tensors) > 100, refused
"""

CASES["a module is given up storage by storage"] = """
def block(i):
    return known(MiB, i).repeat(12)  # a segment of PyTorch's own
def unchanged():
    return all(torch.equal(p.data.cpu(), block(int(n[1:]))) for n, p in blocks.items() if n != "tied")
with stillmap.PublicationHolder(holder) as h:
    blocks = torch.nn.ParameterDict({f"w{i}": torch.nn.Parameter(block(i).cuda(), requires_grad=False)
                                     for i in range(4)})
    blocks["tied"] = blocks["w3"]
    hoard = torch.empty(free() - 18 * MiB, dtype=torch.uint8, device="cuda")
    before = {n: p.data_ptr() for n, p in blocks.items()}
    refused(stillmap.OutOfMemoryError, "memory", st.publish, "blocks", dict(blocks))
    assert before == {n: p.data_ptr() for n, p in blocks.items()} and h.publications() == []
    blocks["w0"].data[:3] = torch.tensor([9, 9, 9], dtype=torch.uint8)   # still the process's own
    blocks["w0"].data[:3] = known(3, 0)
    state = st.publish("blocks", dict(blocks), replace=True)
    assert unchanged()
    assert {n: p.data_ptr() for n, p in blocks.items()} == {n: t.data_ptr() for n, t in state.items()}
    assert blocks["tied"] is blocks["w3"] and state["tied"] is state["w3"]
    # Failure after they were replaced: they have their values, and can be written.
    del state, hoard
    net = fill(Net("cuda"))
    wanted = fill(Net("cpu")).state_dict()
h.close()
refused(OSError, "no socket of this name", st.publish, "net", net.state_dict(keep_vars=True), replace=True)
assert same(net.state_dict(), wanted)
net.layers[0].weight.data[0, :2] = torch.tensor([7.0, 7.0])
assert net.layers[0].weight.data[0, 1].cpu() == 7
assert unchanged(), "mapped, though the holder is gone"
"""

CASES["memory ends with the last tensor"] = """
with stillmap.PublicationHolder(holder) as h:
    state = st.publish("net", fill(Net("cuda")).state_dict())
    # As an nn.Module reads it: with the versions of its modules.
    assert state._metadata["norm"] == {"version": 2}
    kept = state["layers.1.weight"][3]
    memory = state.memory
    del state
    refused(stillmap.BusyError, "views", memory.close)
    del memory
    gc.collect()
    assert len(h.publications()[0]["readers"]) == 1 and kept.cpu()[0] == fill(Net("cpu")).layers[1].weight[3, 0]
    del kept
    gc.collect()
    eventually(lambda: h.publications()[0]["readers"] == [])
    again = st.attach("net")
    assert same(again, fill(Net("cpu")).state_dict())
"""

CASES["private copies"] = """
with stillmap.PublicationHolder(holder):
    a, b = filled(5 * MiB, 1), filled(5 * MiB, 2)
    mine = st.publish("two", {"a": a, "b": b})
    theirs = st.attach("two", relocate=True)
    assert st.make_writable(theirs["a"]) is theirs["a"]
    assert 6 * MiB <= theirs.memory.private_bytes < 12 * MiB
    theirs["a"].copy_(known(5 * MiB, 3))
    assert right(theirs["a"], 3) and right(mine["a"], 1) and right(theirs["b"], 2)
    st.make_writable(mine["b"][:1]); mine["b"][:1] = torch.zeros(1, dtype=torch.uint8)
    assert right(theirs["b"], 2) and mine.memory.private_bytes == 2 * MiB
    refused(stillmap.InvalidArgumentError, "is not in memory", st.make_writable, a)
    st.make_writable(torch.empty(0, device="cuda"))
    before = theirs.memory.private_bytes
    st.make_writable(theirs["a"][7:9])
    assert theirs.memory.private_bytes == before
"""

CASES["addresses that are in use here"] = """
with stillmap.PublicationHolder(holder):
    t = filled(5 * MiB, 1)
    attach, calls = stillmap.attach, []
    def taken(name, relocate=False, **options):
        calls.append(relocate)
        if not relocate:
            raise stillmap.BusyError("the address is in use")
        return attach(name, relocate=True, **options)
    stillmap.attach = taken
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        state = st.publish("t", {"t": t}, replace=True)
    assert "other addresses" in str(said[0].message) and calls == [True, False]
    stillmap.attach = attach
    assert right(t, 1) and t.data_ptr() == state["t"].data_ptr()
    there = st.attach("t")
    assert there["t"].data_ptr() != t.data_ptr() and right(there["t"], 1)
    refused(stillmap.BusyError, "taken", st.attach, "t")
"""

CASES["refused"] = """
import json
with stillmap.PublicationHolder(holder) as h:
    t = filled(MiB)
    for value, text in ((object(), "type object"), ((1, 2), "type tuple"), (torch.empty(3, device="meta"), "meta"),
                        (torch.nn.UninitializedParameter(device="cuda"), "no memory yet")):
        refused(ValueError, text, st.publish, "t", {"t": t, "odd one": value})
        refused(ValueError, "'odd one'", st.publish, "t", {"t": t, "odd one": value})
    refused(ValueError, "3", st.publish, "t", {3: t})
    refused(ValueError, "67108864", st.publish, "t", {"t": torch.zeros(65 * MiB, dtype=torch.uint8)})
    refused(ValueError, "published", st.attach, "t")
    assert h.publications() == []
    refused(ZeroDivisionError, "", st.attach_or_load, "t", lambda: 1 / 0)
    state = st.attach_or_load("t", lambda: {"t": t, "cpu": torch.arange(5), "none": torch.empty(0, 3, device="cuda")})
    assert torch.equal(state["cpu"], torch.arange(5)) and state["none"].shape == (0, 3) and right(state["t"])
    assert st.publish("empty", {"n": 1}) == {"n": 1}

    def other(name, **metadata):
        tag = stillmap.GrowableBuffer(2 * MiB, tag=name, exportable=True)
        return tag, stillmap.publish(name, name, holder=holder, **metadata)
    def described(name, change):
        header = {"format": "stillmap.torch.publication", "version": 1, "cuda": [], "cpu": [], "entries": [],
                  "versions": None}
        change(header)
        text = json.dumps(header).encode()
        return other(name, metadata=len(text).to_bytes(8, "little") + text)
    entry = {"name": "x", "on": "cuda", "record": {
        "kind": "strided", "dtype": "uint8", "type": "torch:Tensor", "grad": False, "inference": False,
        "attributes": {}, "shape": [4], "stride": [1], "offset": 0, "bits": {}, "storage": 0}}
    kept = [other("raw"), other("text", metadata=b"12345678 is no JSON"),
            described("later", lambda d: d.update(version=2)),
            described("far", lambda d: d.update(cuda=[[MiB, 2 * MiB]], entries=[entry])),
            described("long", lambda d: d.update(cuda=[[0, 2]], entries=[entry])),
            described("short", lambda d: d.pop("cuda")),
            described("lost", lambda d: d.update(entries=[entry])),
            described("module", lambda d: d.update(cuda=[[0, 4]], entries=[{**entry, "record": {
                **entry["record"], "type": "antigravity:Tensor"}}]))]
    for name, kind, text in (("raw", stillmap.InvalidArgumentError, "stillmap.attach()"),
                             ("text", stillmap.InvalidArgumentError, "stillmap.attach()"),
                             ("later", stillmap.NotSupportedError, "version 2"),
                             ("far", stillmap.CorruptError, "2097152 B at 1048576"),
                             ("long", stillmap.NotSupportedError, "'x'"), ("short", stillmap.CorruptError, "cuda"),
                             ("lost", stillmap.CorruptError, "damaged"),
                             ("module", stillmap.InvalidArgumentError, "antigravity")):
        refused(kind, text, st.attach, name, relocate=True)
    assert "antigravity" not in sys.modules
del os.environ["STILLMAP_HOLDER"]
for call in (st.attach, lambda name: st.publish(name, {}), lambda name: st.attach_or_load(name, dict)):
    refused(stillmap.InvalidArgumentError, "STILLMAP_HOLDER", call, "t")
"""


@needs("torch")
class Publication(TestCase):
    preamble = PREAMBLE

    def test_each_case(self):
        with open(self.path("cases"), "w") as f:
            json.dump(CASES, f)
        said = self.program("""
with open(os.path.join(sys.argv[1], "cases")) as f:
    cases = json.load(f)
for name, code in cases.items():
    began = time.monotonic()
    print("case:", name, "failed" if run(name, code) else "passed", "%.1f s" % (time.monotonic() - began), flush=True)
""", self.folder, quiet=False, HOSTCUDA=self.one_machine("memory=256M"))
        print(said)
        for name in CASES:
            with self.subTest(name):
                self.assertIn("case: %s passed" % name, said)


if __name__ == "__main__":
    unittest.main()
