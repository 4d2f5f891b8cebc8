#!/usr/bin/env python3
"""Records the allocations and frees of PyTorch programs as traces for `stillmap trace replay`.

The programs run on PyTorch's "meta" device: every operator of the full-size model is dispatched,
forward, backward and optimizer, but no tensor has memory and no kernel runs. So this needs no GPU,
and little memory. Every storage that an operator returns is recorded when it appears and when
Python and autograd have dropped it. What a kernel takes for itself inside an operator (workspaces)
cannot be seen this way; bench/traces/README.md says what that leaves out.

    pip install torch          # any build, 2.6 or newer
    tools/record_torch_trace.py --list
    tools/record_torch_trace.py gpt2_large llama_1b --into traces
    tools/record_torch_trace.py --all --into traces
"""

import argparse
import contextlib
import gc
import os
import random
import shutil
import subprocess
import sys
import time
import weakref

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import trace_models  # noqa: E402
from trace_models import DiffusionUnet, Gpt2, Llama, ResNet  # noqa: E402

GPU = torch.device("meta")  # stands for one


# Initial values: written in place, so they allocate nothing, and there is nothing to write to.
for name in ("uniform_", "normal_", "kaiming_uniform_", "ones_", "zeros_"):
    setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)


class Recorder(TorchDispatchMode):
    """Writes down each storage on the device that an operator returns, and its end."""

    def __init__(self):
        super().__init__()
        self.lines, self.ids = [], {}
        self.stream = self.next_id = 0
        self.live = self.peak = 0
        self.recording = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor) and value.device == GPU:
                self.see(value.untyped_storage())
        return out

    def see(self, storage):
        key = storage._cdata
        if key in self.ids or storage.nbytes() == 0:
            return
        bytes_, id_ = storage.nbytes(), self.next_id
        self.next_id += 1
        self.ids[key] = id_
        self.lines.append(f"a,{id_},{bytes_},{self.stream}")
        self.live += bytes_
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.drop, key, id_, bytes_).atexit = False

    def drop(self, key, id_, bytes_):
        if not self.recording:
            return
        self.ids.pop(key, None)
        self.lines.append(f"f,{id_}")
        self.live -= bytes_

    def boundary(self):
        self.lines.append("i")

    # What a program with streams of its own says; stream 0 computes.
    @contextlib.contextmanager
    def on_stream(self, number):
        before, self.stream = self.stream, number
        yield
        self.stream = before

    def wait(self, waits, until):
        self.lines.append(f"s,{until},{waits}")

    def use(self, tensor, stream):
        self.lines.append(f"u,{self.ids[tensor.untyped_storage()._cdata]},{stream}")


def train(recorder, model, optimizer, steps, loss_of, after_backward=None):
    """The usual loop. The first step makes the optimizer's state, so the steady part begins after."""
    for step in range(steps):
        recorder.boundary()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(step)
        loss.backward()
        if after_backward:
            after_backward()
        optimizer.step()
        del loss
    recorder.boundary()


class MixedPrecision(TorchFunctionMode):
    """What autocast does to a float32 model, which has none for this device: products in bfloat16,
    norms and softmax in float32, the rest in what it is given."""

    NARROW = {F.linear, F.conv2d, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__}
    WIDE = {F.layer_norm, F.group_norm, F.softmax, torch.softmax, torch.Tensor.softmax}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        to = torch.bfloat16 if func in self.NARROW else torch.float32 if func in self.WIDE else None
        if to is not None:
            args = [self.cast(a, to) for a in args]
            kwargs = {name: self.cast(a, to) for name, a in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))

    @staticmethod
    def cast(value, to):
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(to) if floats else value


def tokens_of(batch, length, vocabulary):
    return torch.randint(0, vocabulary, (batch, length), device=GPU)


def language_loss(model, batch, length, vocabulary, checkpointing=False):
    tokens = tokens_of(batch, length + 1, vocabulary)
    logits = model(tokens[:, :-1], checkpointing)
    return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def lengths_of(steps, most, seed=7):
    """Lengths as texts have them: many short, few long, none over `most`; multiples of 8."""
    dice = random.Random(seed)
    return [min(most, max(64, int(dice.lognormvariate(6.4, 0.8)) // 8 * 8)) for _ in range(steps)]


def gpt2(recorder, layers, width, heads, batch, steps=4, checkpointing=False, lengths=None):
    with GPU:
        model = Gpt2(layers, width, heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    train(recorder, model, optimizer, steps, lambda step: language_loss(
        model, batch, lengths[step] if lengths else 1024, 50257, checkpointing))  # fmt: skip


def llama(recorder, shape, batch, length=2048, steps=4, checkpointing=False, lengths=None):
    with GPU:
        model = Llama(*shape).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    train(recorder, model, optimizer, steps, lambda step: language_loss(
        model, batch, lengths[step] if lengths else length, 128256, checkpointing))  # fmt: skip


def resnet(recorder, depths, batch, steps=4):
    with GPU:
        model = ResNet(depths).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)

    def loss_of(_):
        pictures = torch.randn(batch, 3, 224, 224, device=GPU)
        pictures = pictures.to(memory_format=torch.channels_last)
        return F.cross_entropy(model(pictures).float(), tokens_of(1, batch, 1000)[0])

    train(recorder, model, optimizer, steps, loss_of)


def unet(recorder, batch, steps=4):
    with GPU:
        model = DiffusionUnet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def loss_of(_):
        clean = torch.randn(batch, 4, 64, 64, device=GPU)
        noise, text = torch.randn_like(clean), torch.randn(batch, 77, 768, device=GPU)
        when = torch.rand(batch, device=GPU)
        part = when[:, None, None, None]
        said = model((1 - part) * clean + part * noise, 1000 * when, text)
        return F.mse_loss(said.float(), noise)

    train(recorder, model, optimizer, steps, loss_of)


class Buckets:
    """Data-parallel training's other stream: gradients are gathered in buckets of 25 MiB, reduced
    in half the precision on stream 1 while the backward pass goes on, and brought back."""

    def __init__(self, recorder, model, limit=25 << 20):
        self.recorder, self.limit = recorder, limit
        self.waiting, self.bytes, self.flying = [], 0, []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.ready)

    def ready(self, parameter):
        self.waiting.append(parameter)
        self.bytes += parameter.grad.nbytes
        if self.bytes >= self.limit:
            self.send()

    def send(self):
        if not self.waiting:
            return
        bucket = torch.cat([p.grad.flatten() for p in self.waiting])
        self.recorder.wait(1, until=0)
        with self.recorder.on_stream(1):
            small = bucket.to(torch.bfloat16)
            self.recorder.use(bucket, 1)
            small.div_(8)  # and where the ring's other members would add theirs
        self.flying.append((self.waiting, small))
        self.waiting, self.bytes = [], 0

    def finish(self):
        self.send()
        self.recorder.wait(0, until=1)
        for parameters, small in self.flying:
            self.recorder.use(small, 0)
            at = 0
            for p in parameters:
                p.grad.copy_(small[at : at + p.numel()].view_as(p))
                at += p.numel()
        self.flying = []


def gpt2_parallel(recorder, layers, width, heads, batch, steps=4):
    with GPU:
        model = Gpt2(layers, width, heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    buckets = Buckets(recorder, model)
    train(recorder, model, optimizer, steps,
          lambda _: language_loss(model, batch, 1024, 50257), buckets.finish)  # fmt: skip


def generate(recorder, shape, requests=6, seed=11):
    """Serving with a cache that grows by concatenation, one batch after another."""
    dice = random.Random(seed)
    with GPU:
        model = Llama(*shape).to(torch.bfloat16)
    with torch.no_grad():
        for _ in range(requests):
            batch = dice.choice((1, 2, 4, 8))
            length = max(16, int(dice.lognormvariate(6.5, 0.9)))
            length = min(length, 6000)
            caches = [[] for _ in model.blocks]
            logits = model(tokens_of(batch, length, 128256), caches=caches)
            for i in range(dice.randrange(4, 16)):
                following = logits[:, -1].argmax(-1, keepdim=True)
                logits = model(following, caches=caches, begin=length + i)
            del caches, logits, following


LLAMA_1B = (16, 2048, 32, 8, 8192)
LLAMA_3B = (28, 3072, 24, 8, 8192)
LLAMA_8B = (32, 4096, 32, 8, 14336)

def mixed(job):
    def run(recorder):
        trace_models.recompute_context = MixedPrecision
        with MixedPrecision():
            job(recorder)
        trace_models.recompute_context = contextlib.nullcontext

    return run


JOBS = {
    "gpt2_large": mixed(lambda r: gpt2(r, 36, 1280, 20, 5)),
    "gpt2_large_checkpointed": mixed(lambda r: gpt2(r, 36, 1280, 20, 24, checkpointing=True)),
    "gpt2_medium_variable": mixed(lambda r: gpt2(
        r, 24, 1024, 16, 10, steps=10, lengths=lengths_of(10, 1024)
    )),
    "gpt2_medium_parallel": mixed(lambda r: gpt2_parallel(r, 24, 1024, 16, 8)),
    "llama_1b": lambda r: llama(r, LLAMA_1B, 4),
    "llama_3b_checkpointed": lambda r: llama(r, LLAMA_3B, 6, checkpointing=True),
    "llama_1b_variable": lambda r: llama(r, LLAMA_1B, 4, steps=12, lengths=lengths_of(12, 2048)),
    "llama_8b_generate": lambda r: generate(r, LLAMA_8B),
    "resnet50": mixed(lambda r: resnet(r, (3, 4, 6, 3), 256)),
    "resnet152": mixed(lambda r: resnet(r, (3, 8, 36, 3), 256)),
    "diffusion_unet": mixed(lambda r: unet(r, 16)),
}


def record(name, job):
    recorder = Recorder()
    gc.collect()
    gc.disable()  # a collection at a moment of its own would make each recording another one
    with recorder:
        job(recorder)
        recorder.recording = False
    gc.enable()
    gc.collect()
    head = [
        "# stillmap-trace v1",
        f"# {name}: recorded by tools/record_torch_trace.py with PyTorch {torch.__version__}",
        f"# peak of live bytes {recorder.peak}",
    ]
    return "\n".join(head + recorder.lines) + "\n", recorder


def save(path, text):
    """Compressed by the `zstd` program where there is one; else as it is."""
    if shutil.which("zstd") is None:
        print("no `zstd` program: writing uncompressed", file=sys.stderr)
        with open(path, "w", encoding="ascii") as out:
            out.write(text)
        return path
    path += ".zst"
    subprocess.run(["zstd", "-q", "-19", "-f", "-o", path], input=text.encode(), check=True)
    return path


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs to record")
    parser.add_argument("--all", action="store_true", help="record every program")
    parser.add_argument("--list", action="store_true", help="name the programs and stop")
    parser.add_argument("--into", default="traces", metavar="FOLDER", help="default: traces")
    options = parser.parse_args()
    if options.list:
        print("\n".join(JOBS))
        return
    names = list(JOBS) if options.all else options.names
    unknown = [n for n in names if n not in JOBS]
    if unknown or not names:
        said = f"there is no program {unknown[0]}" if unknown else "name a program, or say --all"
        parser.error(f"{said}; there are {', '.join(JOBS)}")
    os.makedirs(options.into, exist_ok=True)
    for name in names:
        begin = time.monotonic()
        text, recorder = record(name, JOBS[name])
        path = save(os.path.join(options.into, name + ".trace"), text)
        print(
            f"{path}: {len(recorder.lines)} lines, peak {recorder.peak / 2**30:.2f} GiB, "
            f"{os.path.getsize(path) / 1024:.0f} KiB, {time.monotonic() - begin:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
