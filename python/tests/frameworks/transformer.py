"""A small Transformer and its training step, for programs of these tests."""

import json
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS, WIDTH, HEADS, LAYERS, BATCH = 4096, 384, 6, 6, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (y.view(n, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.norms[0](x)).chunk(3, dim=-1))
        a = torch.softmax(q @ k.transpose(-2, -1) / 8, dim=-1) @ v
        x = x + self.out(a.transpose(1, 2).reshape(n, t, c))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Training:
    """`lengths`: "fixed" (256) or "random" (64 to 384)."""

    def __init__(self, lengths):
        self.fixed = lengths == "fixed"
        self.random = random.Random(7)
        self.model = nn.Sequential(
            nn.Embedding(WORDS, WIDTH), *[Block() for _ in range(LAYERS)], nn.Linear(WIDTH, WORDS)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, look=lambda: None):
        """Calls look() where much memory is held."""
        length = 256 if self.fixed else 8 * self.random.randint(8, 48)
        batch = torch.randint(WORDS, (BATCH, length)).cuda()
        loss = F.cross_entropy(self.model(batch).view(-1, WORDS), batch.view(-1))
        look()
        loss.backward()
        look()
        self.optimizer.step()
        self.optimizer.zero_grad()
        look()


def choose(allocator):
    """Makes the allocator PyTorch's, and returns a context manager to train inside."""
    import contextlib

    if allocator == "use()":
        import stillmap.torch
        stillmap.torch.use()
    elif allocator == "pool()":
        import stillmap.torch
        return stillmap.torch.pool("train").use(all_threads=True)
    return contextlib.nullcontext()


# What is compared, and the environment of each. The first is the one that PyTorch has by itself.
ALLOCATORS = {
    "native": {},
    "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "use()": {},
    "pool()": {},
}


def print_and_leave(value):
    """Prints a value as JSON and ends the process without Python's finalization.

    PyTorch's autograd thread may drop a reference that late and wait for the GIL. Python 3.11 ends such a thread by
    unwinding its stack, which C++ answers with std::terminate(): one run in some twenty on a busy machine.
    """
    print(json.dumps(value), flush=True)
    os._exit(0)
