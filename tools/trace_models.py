"""The models whose training and generation tools/record_torch_trace.py records: plain torch.nn."""

import contextlib
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


# Around what checkpointing computes again, which happens outside of what is around the model.
recompute_context = contextlib.nullcontext


def flash_attention(q, k, v, causal=True):
    """The fused kernel by its own name: choosing one would ask a real device for its properties."""
    if q.dtype == torch.float32:  # there is none for it
        q, k, v = q.to(torch.bfloat16), k.to(torch.bfloat16), v.to(torch.bfloat16)
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]


def dropout(x, p):
    """The fused kernel that a GPU would take, which keeps a mask of one byte an element."""
    return torch.native_dropout(x, p, True)[0]


class Gpt2Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        # Attention written out, scores and all, as the first GPT-2 code did it.
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(mask, float("-inf")).softmax(-1)
        mixed = dropout(scores, self.dropout) @ v
        x = x + dropout(self.out(mixed.transpose(1, 2).reshape(x.shape)), self.dropout)
        hidden = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + dropout(self.down(hidden), self.dropout)


class Gpt2(nn.Module):
    """GPT-2: learned positions, layer norm, tied head."""

    def __init__(self, layers, width, heads, vocabulary=50257, positions=1024, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Gpt2Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, checkpointing=False):
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            x = run_block(block, checkpointing, x, mask)
        return self.head(self.norm(x))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin, cache=None):
        batch, length, width = x.shape
        normed = self.norm1(x)
        q = self.q(normed).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k(normed).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(normed).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:  # the cache that grows by concatenation
            if cache:
                k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
            cache[:] = [k, v]
        if self.kv_heads != self.heads:
            times = self.heads // self.kv_heads
            k = k.repeat_interleave(times, dim=1)
            v = v.repeat_interleave(times, dim=1)
        mixed = flash_attention(q, k, v, causal=length > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Llama 3: rotary positions, RMS norm, gated feed-forward, grouped key-value heads."""

    def __init__(self, layers, width, heads, kv_heads, hidden, vocabulary=128256):
        super().__init__()
        self.size = width // heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, heads, kv_heads, hidden) for _ in range(layers)
        )
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, checkpointing=False, caches=None, begin=0):
        device = tokens.device
        x = self.tokens(tokens)
        at = torch.arange(begin, begin + tokens.shape[1], device=device, dtype=torch.float32)
        steps = torch.arange(0, self.size, 2, device=device, dtype=torch.float32) / self.size
        angles = torch.outer(at, 500000.0**-steps).repeat(1, 2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for i, block in enumerate(self.blocks):
            if caches is None:
                x = run_block(block, checkpointing, x, cos, sin)
            else:
                x = block(x, cos, sin, caches[i])
        x = self.norm(x if caches is None else x[:, -1:])
        return self.head(x)


def run_block(block, checkpointing, *inputs):
    if not checkpointing:
        return block(*inputs)
    # Without the random state, which is asked of a device that is not there.
    contexts = (contextlib.nullcontext(), recompute_context())
    return checkpoint(
        block, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: contexts
    )


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        out = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(inplace=True), nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut = None
        if stride != 1 or inside != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        same = x if self.shortcut is None else self.shortcut(x)
        return F.relu(self.layers(x) + same, inplace=True)


class ResNet(nn.Module):
    """ResNet with bottleneck blocks; (3, 4, 6, 3) is ResNet-50, (3, 8, 36, 3) ResNet-152."""

    def __init__(self, depths, classes=1000):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
        layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        inside = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for i in range(depth):
                layers.append(Bottleneck(inside, width, 2 if i == 0 and stage > 0 else 1))
                inside = 4 * width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inside, classes)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


class ResidualUnit(nn.Module):
    def __init__(self, inside, out, embedding):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inside), nn.GroupNorm(32, out)
        self.conv1 = nn.Conv2d(inside, out, 3, padding=1)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(embedding, out)
        self.same = nn.Conv2d(inside, out, 1) if inside != out else nn.Identity()

    def forward(self, x, time):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.same(x) + self.conv2(F.silu(self.norm2(h)))


class Mixer(nn.Module):
    """Self-attention, cross-attention to a text, gated feed-forward, on a picture's positions."""

    def __init__(self, width, context, heads=8):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.q = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.kv = nn.ModuleList(nn.Linear(n, 2 * width, bias=False) for n in (width, context))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def attend(self, i, x, other):
        batch, _, width = x.shape
        shape = (batch, -1, self.heads, width // self.heads)
        q = self.q[i](x).view(shape).transpose(1, 2)
        k, v = (t.reshape(shape).transpose(1, 2) for t in self.kv[i](other).chunk(2, dim=-1))
        mixed = flash_attention(q, k, v, causal=False)
        return self.out[i](mixed.transpose(1, 2).reshape(x.shape))

    def forward(self, x, context):
        batch, width, rows, columns = x.shape
        h = self.norm(x).flatten(2).transpose(1, 2)
        normed = self.norms[0](h)
        h = h + self.attend(0, normed, normed)
        h = h + self.attend(1, self.norms[1](h), context)
        value, gate = self.up(self.norms[2](h)).chunk(2, dim=-1)
        h = h + self.down(value * F.gelu(gate))
        return x + h.transpose(1, 2).reshape(batch, width, rows, columns)


class DiffusionUnet(nn.Module):
    """A U-Net of the size and shape of Stable Diffusion 1's: latents of 4 channels, a text of 768."""

    def __init__(self, width=320, multiples=(1, 2, 4, 4), units=2, context=768):
        super().__init__()
        embedding = 4 * width
        self.width = width
        self.time = nn.Sequential(
            nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        skips, now, last = [width], width, len(multiples) - 1
        for level, times in enumerate(multiples):
            for _ in range(units):
                mixer = Mixer(times * width, context) if level < last else None
                self.downs.append(self.step(ResidualUnit(now, times * width, embedding), mixer))
                now = times * width
                skips.append(now)
            if level < last:
                self.downs.append(self.step(nn.Conv2d(now, now, 3, 2, 1)))
                skips.append(now)
        self.middle = nn.ModuleList(
            (ResidualUnit(now, now, embedding), Mixer(now, context), ResidualUnit(now, now, embedding))
        )
        for level, times in reversed(list(enumerate(multiples))):
            for unit in range(units + 1):
                mixer = Mixer(times * width, context) if level < last else None
                inside = now + skips.pop()
                self.ups.append(self.step(ResidualUnit(inside, times * width, embedding), mixer))
                now = times * width
            if level > 0:
                self.ups.append(self.step(nn.Conv2d(now, now, 3, padding=1)))
        self.norm, self.last = nn.GroupNorm(32, now), nn.Conv2d(now, 4, 3, padding=1)

    @staticmethod
    def step(main, mixer=None):
        return nn.ModuleList((main,) if mixer is None else (main, mixer))

    def forward(self, x, when, context):
        steps = torch.arange(self.width // 2, device=x.device, dtype=torch.float32)
        angles = when[:, None] * torch.exp(steps * (-math.log(10000.0) / (self.width // 2)))
        time = self.time(torch.cat((angles.cos(), angles.sin()), dim=-1).to(x.dtype))
        x = self.first(x)
        skips = [x]
        for step in self.downs:
            x = step[0](x, time) if isinstance(step[0], ResidualUnit) else step[0](x)
            x = step[1](x, context) if len(step) > 1 else x
            skips.append(x)
        x = self.middle[0](x, time)
        x = self.middle[2](self.middle[1](x, context), time)
        for step in self.ups:
            if isinstance(step[0], ResidualUnit):
                x = step[0](torch.cat((x, skips.pop()), dim=1), time)
                x = step[1](x, context) if len(step) > 1 else x
            else:
                x = step[0](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.norm(x)))
