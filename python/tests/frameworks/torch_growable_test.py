"""GrowableTensor: its address stays, and nothing is taken from under a view."""

import unittest

from processes import TENSORS, TestCase, needs


@needs("torch")
class Growable(TestCase):
    preamble = TENSORS

    def test_grows_in_place(self):
        self.program("""
g = st.GrowableTensor((0, 1000), dtype=torch.int32)
assert len(g) == 0 and g.tensor.shape == (0, 1000)
at, early = g.data_ptr(), None
for i in range(30):
    g.append(torch.full((997, 1000), i, dtype=torch.int32).cuda())
    early = g.tensor if early is None else early
assert g.data_ptr() == at == g.tensor.data_ptr() and g.shape == (29910, 1000)
whole = g.tensor.cpu()
assert all((whole[i * 997:(i + 1) * 997] == i).all() for i in range(30))
assert (early.cpu() == 0).all(), "a view of the beginning stays valid"
try:
    g.resize(1 << 50)
    raise AssertionError("it fits")
except stillmap.Error:
    pass
assert len(g) == 29910 and torch.equal(g.tensor.cpu(), whole)
g.resize(5)
assert (early.cpu() == 0).all(), "the memory of rows that are gone stays"
try:
    g.shrink_to_fit()
    raise AssertionError("unmapped under a view")
except stillmap.BusyError:
    pass
assert (early.cpu() == 0).all() and len(g) == 5
del early
g.shrink_to_fit()
assert g.data_ptr() == at and (g.tensor.cpu() == 0).all() and g.buffer.capacity < 10 * MiB
view = g.tensor
del g
assert (view.cpu() == 0).all(), "a view keeps the memory"
""")

    def test_growing_past_the_reservation_is_refused_or_asked_for(self):
        self.program("""
def refused(kind, call, *texts):
    before = (g.data_ptr(), g.shape)
    try:
        call()
        raise AssertionError("grew")
    except kind as e:
        assert all(text in str(e) for text in texts), e
    assert (g.data_ptr(), g.shape) == before
g = st.GrowableTensor((0, 1024), dtype=torch.uint8, reserve=2048)
neighbour = stillmap.GrowableBuffer(2 * MiB, reserve=2 * MiB, hint=g.data_ptr() + 2 * MiB)
five, row = torch.full((2048, 1024), 5, dtype=torch.uint8), torch.full((1, 1024), 6, dtype=torch.uint8)
g.append(five)
view, at = g.tensor[7:9], g.data_ptr()
for options in ({}, {"relocate": True}):
    refused(stillmap.BusyError, lambda: g.append(row, **options), "views", "2098176", "2097152")
    refused(stillmap.BusyError, lambda: g.resize(2049, **options), "views")
assert (view.cpu() == 5).all()
del view
refused(stillmap.InvalidArgumentError, lambda: g.append(row), "relocate=True", "reserve", "2098176", "2097152")
refused(stillmap.InvalidArgumentError, lambda: g.resize(4096), "4194304")
refused(stillmap.OutOfMemoryError, lambda: g.resize(1 << 40), "memory")
g.append(row, relocate=True)
assert g.data_ptr() != at and g.shape == (2049, 1024)
assert (g.tensor[:2048].cpu() == 5).all() and (g.tensor[2048:].cpu() == 6).all()
""")

    def test_a_failed_append_changes_nothing(self):
        self.program("""
g = st.GrowableTensor((0, 4), dtype=torch.bfloat16, tag="kv", reserve=1 << 20)
row = torch.ones(1, 4, dtype=torch.bfloat16, device="cuda")
g.append(row)
stillmap.suspend("kv")
for call in (lambda: g.append(row), lambda: g.resize(2)):
    try:
        call()
        raise AssertionError("grew")
    except stillmap.BusyError as e:
        assert "'kv' is suspended" in str(e), e
    assert g.shape == (1, 4)
stillmap.resume("kv")
class Bad(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        if "copy_" in str(function):
            raise ZeroDivisionError
        return super().__torch_function__(function, types, arguments, options or {})
for bad, kind in ((row.cpu().as_subclass(Bad), ZeroDivisionError), (torch.ones(1, 5), ValueError),
                  (torch.ones(()), ValueError), (3, TypeError)):
    try:
        g.append(bad)
        raise AssertionError("appended")
    except kind:
        assert g.shape == (1, 4)
g.append(row.cpu())
assert g.shape == (2, 4)
""")


if __name__ == "__main__":
    unittest.main()
