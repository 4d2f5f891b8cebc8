"""PyTorch's tensors of KV arenas: addresses, strides, types, and what they keep."""

import unittest

from processes import TENSORS, TestCase, needs


@needs("torch")
class KVArenas(TestCase):
    preamble = TENSORS + """
shape = dict(layers=4, heads=8, dim=64, dtype="int16")
def step(arena, *arguments):
    arena.prepare(*arguments, stream=torch.cuda.current_stream())
    assert arena.begin_step() == 0
"""

    def test_blocks(self):
        self.program("""
arena = stillmap.KVArena(**shape, blocks=512)
keys, values = (st.kv_tensor(arena.tensor(2, i), torch.bfloat16) for i in (0, 1))
both = st.kv_tensor(arena.tensor(2), torch.bfloat16)
assert keys.shape == (512, 16, 8, 64) and both.shape == (2, 512, 16, 8, 64)
assert keys.dtype == torch.bfloat16 and keys.device == torch.device("cuda", 0) and not keys.is_contiguous()
assert (keys.data_ptr(), values.data_ptr()) == (arena.tensor(2, 0).address, arena.tensor(2, 1).address)
assert keys.stride(0) * 2 == arena.layout["block_stride"] and both[1].data_ptr() == values.data_ptr()
step(arena, 20)
blocks = arena.allocate(20)
for i, block in enumerate(blocks):
    keys[block].copy_(torch.full((16, 8, 64), i, dtype=torch.bfloat16))
    values[block].copy_(torch.full((16, 8, 64), -i, dtype=torch.bfloat16))
again = st.kv_tensor(arena.tensor(2, 0), torch.bfloat16)
for i, block in enumerate(blocks):
    assert (again[block].cpu() == i).all() and (values[block].cpu() == -i).all() and (both[1, block].cpu() == -i).all()
arena.release(blocks[1:])
step(arena, 0)
assert keys.data_ptr() == again.data_ptr() and (keys[blocks[0]].cpu() == 0).all()
""")

    def test_a_tensor_keeps_the_arena(self):
        self.program("""
arena = stillmap.KVArena(**shape, blocks=64)
step(arena, 1)
block, = arena.allocate(1)
keys = st.kv_tensor(arena.tensor(0, 0))[block]
keys.copy_(torch.full((16, 8, 64), 5, dtype=torch.int16))
try:
    arena.close()
    raise AssertionError("closed under a tensor")
except stillmap.BusyError as e:
    assert "exported" in str(e), e
before = free()
del arena
assert (keys.cpu() == 5).all() and free() == before, "a tensor keeps the memory"
del keys
assert free() > before, "the last tensor gives it back"
try:
    st.kv_tensor(stillmap.KVArena(**shape, blocks=64).tensor(0, 0), torch.float32)
    raise AssertionError("two bytes are four")
except ValueError as e:
    assert "int16" in str(e), e
""")

    def test_sequences(self):
        self.program("""
arena = stillmap.KVSequenceArena(**shape, longest=2048, sequences=4)
prompt = arena.add()
arena.reserve(prompt, 100)
step(arena)
keys = st.kv_tensor(arena.tensor(prompt, 3, 0), torch.bfloat16)
assert keys.shape == (2048, 8, 64) and keys.data_ptr() == arena.tensor(prompt, 3, 0).address
for token in range(100):
    keys[token].copy_(torch.full((8, 64), token, dtype=torch.bfloat16))
answer = arena.fork(prompt, 90)
arena.reserve(answer, 2000)
step(arena)
forked = st.kv_tensor(arena.tensor(answer, 3, 0), torch.bfloat16)
torch.cuda.synchronize()
assert all((forked[token].cpu() == token).all() for token in range(90))
forked[1999].copy_(torch.ones(8, 64, dtype=torch.bfloat16))
arena.remove(answer)
arena.remove(prompt)
""")


if __name__ == "__main__":
    unittest.main()
