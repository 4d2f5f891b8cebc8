"""CUDA tensors through torch.multiprocessing: their memory passes to other processes as file descriptors."""

import os
import pathlib
import subprocess
import sys
import unittest

from processes import TENSORS, TestCase, needs

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/frameworks/torch_multiprocessing.py"

BOTH = TENSORS + """
import time
import torch.multiprocessing as mp
import tensor_receivers as tr
from tensor_receivers import Receiver, filled, known, right
from stillmap.torch import _share_client, _share_server
tr.allow_files()
def raised(kind, call, *texts):
    try:
        call()
    except kind as e:
        assert all(text in str(e) for text in texts), e
        return
    raise AssertionError("nothing was raised")
def eventually(ask, wanted, reached=lambda got, wanted: got == wanted):
    until = time.monotonic() + 60
    while not reached(got := ask(), wanted):
        assert time.monotonic() < until, (got, wanted)
        time.sleep(0.01)
def kept():
    return _share_server.server().figures()["storages"]
"""


@needs("torch")
class Sharing(TestCase):
    preamble = BOTH

    def test_a_thousand_messages_lose_nothing(self):
        self.program("""
st.use(exportable=True)
receiver = Receiver("spawn")
# What a process uses once: the connection, the server and its thread, hostcuda's own files.
assert receiver.ask("result = right(given[0])", filled(1))
check = '''
from stillmap.torch import _share_client
import stillmap
torch.cuda.synchronize()
result = (descriptors(), _share_client.figures(), stillmap.stats()["mapped_bytes"], stillmap.stats()["physical_bytes"])
'''
def here():
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    figures = _share_server.server().figures()
    return (tr.descriptors(), figures["storages"], figures["offers"], figures["leases"], st.stats()["total"]["live"], free())
eventually(lambda: here()[1:5], (0, 0, 0, 0))
before, there = here(), receiver.ask(check)
assert there[1] == {"sessions": 1, "regions": 0, "storages": 0, "ended": 0} and there[2:] == (0, 0), there
sizes = [int(2 ** (i % 200 / 10)) for i in range(1, 1000)] + [1 << 30]  # 1 byte to 1 MiB, and one of 1 GiB
sizes[300] = sizes[600] = (64 << 20) + 5
for i, n in enumerate(sizes):
    t = filled(n, i % 5)
    receiver.send("result = right(*given)", t, i % 5)
    if i % 3:
        del t  # while it is on its way
    assert receiver.answer() is True, (i, n)
t = None
assert len(sizes) == 1000 and min(sizes) == 1
def no_more(got, before):  # descriptors: of some that hostcuda used before it may have closed one since
    return got[0] <= before[0] and got[1:] == before[1:]
eventually(here, before, no_more)
eventually(lambda: receiver.ask(check), there, no_more)
receiver.end()
""")

    def test_kinds_of_tensors(self):
        self.program("""
receiver = Receiver()
st.use(exportable=True)
def same(*tensors):
    told = receiver.ask("result = [(description(t), value(t)) for t in given]", *tensors)
    assert isinstance(told, list), told
    for t, (description, value) in zip(tensors, told):
        assert description == tr.description(t), (description, tr.description(t))
        bits = [v.reshape(-1).view(torch.uint8) for v in (tr.value(t), value)]  # of what may be no number
        assert torch.equal(*bits), description
base = filled(6 * MiB)
small = [filled(n, n) for n in (1, 5, 1000)]
for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
              torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn):
    same(base[:4800].view(dtype), base[48 + 2 * MiB - 96:].view(dtype)[3:90])
same(base.view(torch.int32).view(1024, 1536).t(), base.view(1024, -1)[5:100:7, 3:9], base[7], base.expand(3, 6 * MiB)[1:],
     base.view(torch.int32)[10:20].expand(4, 10), base.view(2, 3, -1).permute(2, 0, 1), torch.as_strided(base, (3, 4), (2, 1), 9),
     *small)
same(base.view(torch.complex64)[:50].conj())
same(torch.nn.Parameter(base[:400].view(torch.float32)), torch.nn.Parameter(base[:400], requires_grad=False),
     base[:400].view(torch.float32).requires_grad_())
same(torch.empty(0, device="cuda"), torch.empty((3, 0, 2), dtype=torch.int32, device="cuda"))
assert small[0].share_memory_() is small[0] and small[0].is_shared()
raised(RuntimeError, lambda: receiver.send("", base[:4].view(torch.float32).requires_grad_() * 1), "non-leaf tensor")

# Several tensors of one storage are so there, in one message and in two.
assert receiver.ask('''
kept = given
result = [t.untyped_storage()._cdata for t in given]
''', base, base[10:], base.view(torch.int64))[1:] == receiver.ask("result = [t.untyped_storage()._cdata for t in given]",
                                                                 base[5:6], base) and True
assert receiver.ask("result = len({t.untyped_storage()._cdata for t in (*kept, *given)})", base[3:]) == 1
# It is the same memory.
receiver.ask("kept[1][:1000].copy_(known(1000, 9))")
assert right(base[10:1010], 9)
base[4 * MiB:].copy_(known(2 * MiB, 4))
assert receiver.ask("result = right(kept[0][4 << 20:], 4)") is True
# Tensors that share a page share its mapping.
assert receiver.ask('''
from stillmap.torch import _share_client
few, kept = given, None
result = _share_client.figures()["regions"], len({t.untyped_storage()._cdata for t in few})
''', *small) == (1, 3)
receiver.ask("few = None")
eventually(kept, 0)

# The parts of a sparse tensor, and what is no CUDA tensor.
torch.sparse.check_sparse_tensor_invariants.disable()
receiver.ask("torch.sparse.check_sparse_tensor_invariants.disable()")
sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.5, 2.5]), (4,), check_invariants=False).cuda()
assert [t.tolist() for t in receiver.ask("result = (given[0]._indices().cpu(), given[0]._values().cpu())", sparse)] == \\
    [[[0, 2]], [1.5, 2.5]]
host = known(1000)
assert receiver.ask("result = given[0].device.type, torch.equal(given[0], known(1000)), given[1]", host, "text") == \\
    ("cpu", True, "text")
receiver.end()
""")

    def test_what_cannot_be_sent_is_refused_with_advice(self):
        self.program("""
from multiprocessing.reduction import ForkingPickler
receiver = Receiver()
pool = st.pool("kv", exportable=True)
private = st.pool("private")
with pool.use():
    ours = filled(3 * MiB)
with private.use():
    closed = filled(100)
native = filled(3 * MiB)
raised(stillmap.NotSupportedError, lambda: ForkingPickler.dumps(closed), "exportable=True", "sending a CUDA tensor")
raised(stillmap.NotSupportedError, lambda: ForkingPickler.dumps(st.GrowableTensor((5, 5)).tensor), "exportable=True")
raised(RuntimeError, lambda: ForkingPickler.dumps(ours.untyped_storage()), "Cannot pickle CUDA storage")  # PyTorch's
# PyTorch's own memory goes PyTorch's way.
assert receiver.ask('''
result = right(given[0]), right(given[1])
from stillmap.torch import _share_client
result += (_share_client.figures()["storages"],)
''', ours, native) == (True, True, 1)

# A tag is not suspended under a receiver, and what is on its way waits for resume.
assert receiver.ask("mine = given; result = right(mine[0])", ours) is True
raised(stillmap.BusyError, pool.suspend, "other processes have 1 tensors of tag 'kv'")
raised(stillmap.BusyError, lambda: stillmap.suspend("kv"), "other processes have tensors in it")
receiver.ask("mine = None")
pool.suspend()
raised(stillmap.BusyError, lambda: ForkingPickler.dumps(ours), "suspended")
pool.resume()
message = ForkingPickler.dumps(ours)
pool.suspend()
fetch = "import pickle; mine = pickle.loads(given[0]); result = right(mine)"
told = receiver.ask(fetch, bytes(message))
assert told.startswith("BusyError") and "suspended" in told and f"process {os.getpid()}" in told, told
pool.resume()
assert right(ours)
message = bytes(ForkingPickler.dumps(ours))
assert receiver.ask(fetch, message) is True
told = receiver.ask(fetch + "; del mine", message)
assert told is True, "the storage is there already"
receiver.ask("mine = None")
told = receiver.ask(fetch, message)
assert "received before" in told, told

# A graph's capture is not disturbed.
s, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
with torch.cuda.stream(s):
    graph.capture_begin()
    ours[:1].fill_(ours.numel() % 2)
    raised(stillmap.BusyError, lambda: ForkingPickler.dumps(ours), "captures a graph")
    graph.capture_end()
eventually(kept, 0)
del native
torch.cuda.ipc_collect()  # PyTorch warns at the end of what was not collected

# Too few descriptors: an error that says so, and nothing is lost.
few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"
assert receiver.ask(few) is None
with pool.use():
    large = filled(40 * MiB)
told = receiver.ask("", large)
assert "Error" in told and ("no more files" in told or "OPERATING_SYSTEM" in told or "open" in told), told
assert receiver.ask("allow_files(); result = None") is None
assert receiver.ask("result = right(given[0])", large) is True
eventually(kept, 0)
receiver.end()
""")

    def test_the_receiver_sees_completed_writes_and_the_sender_completed_reads(self):
        self.program("""
import threading, support
receiver = Receiver()
st.use()
t, s = filled(MiB), torch.cuda.Stream()
source = known(MiB, 3).pin_memory()
with torch.cuda.stream(s):
    gate = support.driver().queue_gate(s.cuda_stream)
    t.copy_(source, non_blocking=True)
    threading.Timer(0.3, gate.open).start()
    receiver.send("result = right(given[0], 3)", t)
assert receiver.answer() is True
eventually(kept, 0)

receiver.send('''
import threading, support
own = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
s = torch.cuda.Stream()
gate = support.driver().queue_gate(s.cuda_stream)
with torch.cuda.stream(s):
    own.copy_(given[0], non_blocking=True)
threading.Timer(0.5, gate.open).start()
''', t)
del t
begin = time.monotonic()
eventually(kept, 0)  # and its memory may be overwritten
t = filled(MiB, 8)
assert receiver.answer() is None
assert receiver.ask("result = right(own, 3)") is True

# Within a capture nothing is waited for: what has ended is given back at the next occasion.
assert receiver.ask('''
mine = given[0]
given = None
graph = torch.cuda.CUDAGraph()
with torch.cuda.stream(s):
    graph.capture_begin()
    own[:1].zero_()
    del mine
    names = None
    graph.capture_end()
from stillmap.torch import _share_client
''', t) is None
receiver.ask("result = right(given[0], 8)", t)
eventually(kept, 0)
receiver.end()
""", STILLMAP_TORCH_EXPORTABLE="1")

    def test_several_receivers_and_processes_that_end(self):
        self.program("""
one, two, third = (Receiver() for _ in range(3))
context = mp.get_context("fork")
queue, go, received = context.Queue(), [context.Event(), context.Event()], context.Event()
senders = [context.Process(target=tr.send_and_end, args=(queue, (5 * MiB, 2), each, received, f"errors{i}"), daemon=True)
           for i, each in enumerate(go)]
for sender in senders:
    sender.start()
st.use(exportable=True)
t = filled(5 * MiB)
for receiver in (one, two):
    receiver.ask("mine = given[0]", t)
one.ask("mine[:100].copy_(known(100, 6))")
assert two.ask("result = right(mine[:100], 6)") is True
t.copy_(known(5 * MiB))
address = t.data_ptr()
del t
assert kept() == 1 and st.stats()["total"]["live"] >= 5 * MiB, "the receivers keep it"

# A received tensor is sent on, and back: it is still the first process's memory.
back = one.ask("result = mine")
assert back.data_ptr() == address and right(back), "what comes back is the tensor itself"
two.ask("mine = None")
from multiprocessing.reduction import ForkingPickler
message = one.ask("from multiprocessing.reduction import ForkingPickler; result = bytes(ForkingPickler.dumps(mine[7:]))")
one.kill()  # on its way it needs the process that made it, and not the one that sent it on
assert third.ask("import pickle; mine = pickle.loads(given[0]); result = description(mine), value(mine).equal(known(5 << 20)[7:])",
                 message) == (tr.description(back[7:]), True)
del back
assert kept() == 1
third.kill()
eventually(kept, 0)  # what a process had that died is the sender's again
eventually(lambda: st.stats()["total"]["live"], 0)

# To itself.
t = filled(100)
own = context.SimpleQueue()
own.put(t)
assert own.get().data_ptr() == t.data_ptr() and kept() == 0

# A sender that ends: what was received stays, what was not is an error that names it.
sender = senders[0]
go[0].set()
got = queue.get()
received.set()
sender.join()
assert sender.exitcode == 0 and right(got, 2)
raised(stillmap.Error, lambda: ForkingPickler.dumps(got), str(sender.pid), "has ended", "clone")
del got
assert _share_client.figures()["regions"] == 0
sender = senders[1]
go[1].set()
sender.join()
said = [open(f"errors{i}").read() for i in (0, 1)]
assert not said[0] and "1 CUDA tensors that it sent were not received" in said[1], said
raised(stillmap.Error, queue.get, str(sender.pid), "has ended", "wait for its receivers")
two.end()
""", quiet=False)

    def test_data_loader_and_arguments_of_processes(self):
        self.program("""
loader = torch.utils.data.DataLoader(tr.OnDevice(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
got = list(loader)
assert len(got) == 8 and all(right(t, i) and t.is_cuda for i, t in enumerate(got))
""", quiet=False)

    def test_a_device_that_cannot_map_pages(self):
        self.program("""
from multiprocessing.reduction import ForkingPickler
st.use(exportable=True)
raised(stillmap.NotSupportedError, lambda: ForkingPickler.dumps(filled(100)), "tensor.cpu()")
""", HOSTCUDA="profile=vgpu-no-vmm,kernels=skip,memory=4G")

    def test_another_device_than_the_current_one(self):
        self.program("""
receiver = Receiver()
st.use(exportable=True)
with torch.cuda.device(1):
    t = filled(3 * MiB)
assert receiver.ask('''
on_first = torch.empty(3 << 20, dtype=torch.uint8, device="cuda:0")
on_first.copy_(given[0])
result = str(given[0].device), right(on_first), torch.cuda.current_device()
''', t) == ("cuda:1", True, 0)
eventually(kept, 0)
receiver.end()
""", HOSTCUDA="profile=multi:2,kernels=skip,memory=4G")

    def test_the_example(self):
        done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=300, cwd=self.folder,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "the sum there: 1000.0\n", ""))


if __name__ == "__main__":
    unittest.main()
