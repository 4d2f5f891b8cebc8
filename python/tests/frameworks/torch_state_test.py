"""stillmap.torch.snapshot and restore: each tensor comes back equal, or is refused by name before anything is written."""

import json
import pathlib
import unittest

from processes import TENSORS, TestCase, needs

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs/pytorch.md"
KINDS = TENSORS + """
import json, re, tensor_kinds as k
"""


@needs("torch")
class Kinds(TestCase):
    """Every dtype, layout, quantisation scheme and class of this PyTorch, kinds of views, and what else tensors carry."""

    preamble = KINDS

    def test_each_comes_back_equal_or_is_refused(self):
        image, expected = self.path("kinds.smi"), self.path("expected.json")
        told = json.loads(self.program("""
        pool = st.pool("kinds")
        tensors, groups, refused = {}, {}, {}
        for group, name, make in k.kinds(pool):
            with pool.use():
                tensors[name], groups[name] = make(), group
        while True:
            try:
                st.snapshot(sys.argv[1], "kinds", tensors=tensors)
                break
            except stillmap.InvalidArgumentError as e:
                name = next(n for n in tensors if f"tensor {n!r} " in str(e))
                refused[name] = str(e)
                del tensors[name]
                assert not os.path.exists(sys.argv[1]), "refused before anything is written"
        with open(sys.argv[2], "w") as f:
            json.dump({name: k.anatomy(t) for name, t in tensors.items()}, f)
        dispatching = [k.name_of(c) for c in k.subclasses(torch.Tensor)
                       if c.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__]
        print(json.dumps([groups, refused, dispatching]))
        """, image, expected, quiet=False).splitlines()[-1])
        groups, refused, dispatching = told
        for name, group in groups.items():
            print(f"{group:9} | {name} | ", refused.get(name, "equal").partition("snapshot: ")[2] or "equal", sep="")
        for name in dispatching:
            self.assertIn("__torch_dispatch__", refused.get(name, ""), name)
        page = PAGE.read_text()
        for group in dict.fromkeys(groups.values()):
            names = [n for n in refused if groups[n] == group and n not in dispatching]
            self.assertIn(f"| {group} | {'; '.join(names) or 'none'} |\n", page, "the table of docs/pytorch.md")
        self.program("""
        with open(sys.argv[2]) as f:
            expected = json.load(f)
        restored = st.restore(sys.argv[1])
        assert list(restored) == list(expected), set(expected) ^ set(restored)
        found = {name: k.anatomy(t) for name, t in restored.items()}
        different = [(name, found[name], expected[name]) for name in found if found[name] != expected[name]]
        assert not different, different
        """, image, expected)


@needs("torch")
class Snapshots(TestCase):
    preamble = TENSORS + "import contextlib\n"

    def test_tensors_come_back_in_a_fresh_process(self):
        image = self.path("state.smi")
        self.program("""
pool = st.pool("state")
with pool.use():
    layer = torch.nn.Linear(300, 500, device="cuda")
    with torch.no_grad():
        layer.weight.copy_(torch.arange(150000).reshape(500, 300).float())
        layer.bias.copy_(torch.arange(500).float())
    rest = filled(5 * MiB, 4)
empty = torch.empty((0, 3), device="cuda")
seen = []
st.snapshot(sys.argv[1], "state", tensors={**layer.state_dict(), "rest": rest, "turned": layer.weight.t(),
                                           "part": rest[1000:2000]}, progress=lambda done, all: seen.append(done))
assert seen
""", image)
        self.program("""
state = st.restore(sys.argv[1])
assert sorted(state) == ["bias", "part", "rest", "turned", "weight"]
weight = state["weight"]
assert torch.equal(weight.cpu(), torch.arange(150000).reshape(500, 300).float())
assert torch.equal(state["turned"].cpu(), weight.cpu().t()) and state["turned"].stride() == (1, 300)
assert right(state["rest"], 4) and torch.equal(state["part"].cpu(), state["rest"].cpu()[1000:2000])
del state
assert weight.cpu()[1, 0] == 300, "a tensor keeps the memory"
st.suspend("state"); st.resume("state")
assert weight.cpu()[1, 0] == 300
""", image)

    def test_what_is_tied_stays_tied(self):
        image = self.path("tied.smi")
        self.program("""
pool = st.pool("m")
with pool.use():
    embedding = torch.nn.Embedding(16, 8, device="cuda")
    head = torch.nn.Linear(8, 16, bias=False, device="cuda")
    head.weight = embedding.weight
    values = filled(12).view(torch.float32)
    ix = torch.empty((2, 3), dtype=torch.int64, device="cuda")
ix.copy_(torch.tensor([[0, 1, 1], [2, 0, 2]]))
sparse = torch.sparse_coo_tensor(ix, values, (2, 3), check_invariants=False)
st.snapshot(sys.argv[1], "m", tensors={
    "a": embedding.weight, "b": head.weight, "data": head.weight.data, "row": embedding.weight[3],
    "sparse": sparse, "values": values, "none": torch.empty(0, device="cuda")})
""", image)
        self.program("""
r = st.restore(sys.argv[1])
assert r["a"] is r["b"] and isinstance(r["a"], torch.nn.Parameter) and r["row"].requires_grad
same = lambda *t: len({x.untyped_storage()._cdata for x in t}) == 1
assert same(r["a"], r["data"], r["row"]) and r["row"].storage_offset() == 24
assert same(r["sparse"]._values(), r["values"])
r["row"].data.copy_(torch.full((8,), 7.0))
assert (r["a"].detach()[3].cpu() == 7).all() and r["none"].shape == (0,)
""", image)

    def test_under_every_mode(self):
        self.program("""
pool = st.pool("m")
with pool.use():
    p = torch.nn.Parameter(filled(12).view(torch.float32))
    ix = torch.empty((2, 3), dtype=torch.int64, device="cuda")
ix.copy_(torch.tensor([[0, 1, 1], [2, 0, 2]]))
sparse = torch.sparse_coo_tensor(ix, p.detach(), (2, 3), check_invariants=False)
modes = {"none": contextlib.nullcontext, "grad": torch.no_grad, "inference": torch.inference_mode,
         "device": lambda: torch.device("meta")}
for saved, save in modes.items():
    with save():
        st.snapshot(sys.argv[1] + saved, "m", tensors={"p": p, "sparse": sparse})
    for restored, restore in modes.items():
        with restore():
            r = st.restore(sys.argv[1] + saved)
        assert type(r["p"]) is torch.nn.Parameter and r["p"].requires_grad, (saved, restored)
        assert r["sparse"].device.type == "cuda" and not r["sparse"].is_inference(), (saved, restored)
        assert torch.equal(r["sparse"]._values().cpu(), p.detach().cpu()), (saved, restored)
""", self.path("state.smi"), quiet=False)

    def test_refused_before_anything_is_written(self):
        self.program("""
pool, other = st.pool("train"), st.pool("other")
with pool.use():
    inside = filled(MiB, 7)
with other.use():
    beside = filled(MiB, 8)
    ix = torch.empty((2, 1), dtype=torch.int64, device="cuda")
mixed = torch.sparse_coo_tensor(ix, inside[:1], (4, 4), check_invariants=False)
outside = filled(MiB, 9)
st.snapshot(sys.argv[1], "train", tensors={"inside": inside})
with open(sys.argv[1], "rb") as f:
    before = f.read()
def refused(tensors, *texts):
    for options in ({"replace": True}, {"parent": sys.argv[1]}):
        path = sys.argv[1] if "replace" in options else sys.argv[1] + ".child"
        try:
            st.snapshot(path, "train", tensors={"inside": inside, **tensors}, **options)
            raise AssertionError("saved")
        except ValueError as e:
            assert all(text in str(e) for text in texts), e
    assert not os.path.exists(sys.argv[1] + ".child")
    with open(sys.argv[1], "rb") as f:
        assert f.read() == before
refused({"lost": outside}, "'lost'", "is not Stillmap's", "'train'")
refused({"lost": beside}, "'lost'", "'other'", "'train'")
refused({"lost": mixed}, "'lost'", "indices", "'other'")
refused({"lost": torch.ones(1)}, "'lost'", "on cpu")
refused({"lost": None}, "'lost'", "NoneType")
refused({3: inside}, "[3]", "names are strings")
pool.suspend()
try:
    st.snapshot(sys.argv[1] + ".child", "train", tensors={"inside": inside})
    raise AssertionError("saved")
except stillmap.BusyError as e:
    assert "'train' is suspended" in str(e), e
pool.resume()
st.snapshot(sys.argv[1], ["train", "other"], tensors={"a": inside, "b": beside, "c": mixed, "c again": mixed,
                                                      "none": outside[:0]}, replace=True)
r = st.restore(sys.argv[1])
assert list(r) == ["a", "b", "c", "c again", "none"] and right(r["b"], 8) and r["c"] is r["c again"]
assert list(st.restore(sys.argv[1], tags=["train"])) == ["a", "none"], "those of the memory that was asked for"
assert list(st.restore(sys.argv[1], tags="other")) == ["b", "none"]
""", self.path("state.smi"))

    def test_restored_memory_stays_while_a_tensor_lives(self):
        self.program("""
pool = st.pool("m")
with pool.use():
    t = filled(MiB, 3)
st.snapshot(sys.argv[1], "m", tensors={"t": t})
r = st.restore(sys.argv[1])
memory, kept = r.memory, r["t"][5:9]
del r
try:
    memory.close()
    raise AssertionError("closed under a tensor")
except stillmap.BusyError as e:
    assert "views" in str(e), e
assert torch.equal(kept.cpu(), known(MiB, 3)[5:9])
del kept
memory.close()
""", self.path("state.smi"))

    def test_a_class_is_not_imported_for_an_image(self):
        image = self.path("state.smi")
        self.program("""
import tensor_kinds as k
pool = st.pool("m")
with pool.use():
    t = filled(MiB, 3).as_subclass(k.Subclass)
st.snapshot(sys.argv[1], "m", tensors={"t": t})
""", image)
        self.program("""
try:
    st.restore(sys.argv[1])
    raise AssertionError("restored")
except stillmap.InvalidArgumentError as e:
    assert "'t'" in str(e) and "Subclass of the module tensor_kinds: import that first" in str(e), e
assert "tensor_kinds" not in sys.modules
assert len(stillmap.restore(sys.argv[1], relocate=True).blocks) == 1
import tensor_kinds
assert type(st.restore(sys.argv[1])["t"]) is tensor_kinds.Subclass
""", image)

    def test_images_of_other_versions(self):
        self.program("""
pool = st.pool("m")
with pool.use():
    t, u = filled(MiB, 3), filled(2 * MiB, 4)
def written(note):
    stillmap.snapshot(sys.argv[1], "m", notes={"stillmap.torch.tensors": json.dumps(note).encode()}, replace=True)
import json
entry = {"name": "t", "address": t.data_ptr(), "dtype": "uint8", "shape": [3, 5], "stride": [1, 3]}
turned = {**entry, "name": "turned", "dtype": "int16", "shape": [4], "stride": [0]}
none = {**entry, "name": "none", "address": 0, "shape": [0, 3], "stride": [3, 1]}
lost = {**entry, "name": "lost", "address": 4096}
written([entry, turned, none])
r = st.restore(sys.argv[1])
assert list(r) == ["t", "turned", "none"] and torch.equal(r["t"].cpu(), known(15, 3).as_strided((3, 5), (1, 3)))
assert r["turned"].dtype == torch.int16 and r["turned"].stride() == (0,) and r["none"].shape == (0, 3)
written([entry, lost])
try:
    st.restore(sys.argv[1])
    raise AssertionError("restored")
except stillmap.InvalidArgumentError as e:
    assert "'lost'" in str(e) and "not in the image" in str(e), e
assert list(st.restore(sys.argv[1], tags=["m"])) == ["t"]
written({"version": 3, "tensors": []})
try:
    st.restore(sys.argv[1])
    raise AssertionError("restored")
except stillmap.NotSupportedError as e:
    assert "version 3" in str(e), e
st.snapshot(sys.argv[1], "m", tensors={"t": t}, replace=True)
note = json.loads(stillmap.restore(sys.argv[1], relocate=True).notes["stillmap.torch.tensors"])
note["tensors"][0]["dtype"] = "float3_of_tomorrow"
written(note)
try:
    st.restore(sys.argv[1])
    raise AssertionError("restored")
except stillmap.NotSupportedError as e:
    assert "'t'" in str(e) and "float3_of_tomorrow" in str(e) and torch.__version__ in str(e), e
""", self.path("state.smi"))

    def test_a_damaged_image_is_refused(self):
        image = self.path("state.smi")
        self.program("""
pool = st.pool("state")
with pool.use():
    rest = filled(5 * MiB, 4)
st.snapshot(sys.argv[1], "state", tensors={"rest": rest})
with open(sys.argv[1], "r+b") as f:
    f.seek(3 * MiB)
    byte = f.read(1)
    f.seek(3 * MiB)
    f.write(bytes([byte[0] ^ 1]))
before = free()
try:
    st.restore(sys.argv[1], relocate=True)
    raise AssertionError("restored")
except stillmap.Error as e:
    assert "state.smi" in str(e), e
assert free() == before
""", image)


if __name__ == "__main__":
    unittest.main()
