#!/usr/bin/env python3
"""Generates traces of allocation workloads for `stillmap trace replay`.

Each workload follows the requests of a kind of program: inference servers, training loops,
containers, and patterns that fragment memory. A trace is what stands before the first `i` line (the
model, which stays live), then iterations, each ended by an `i` line. The same seed gives the same
text on every machine: random numbers become sizes by integer arithmetic, not by logarithms.

    tools/workloads.py --list
    tools/workloads.py --into FOLDER                               all workloads
    tools/workloads.py --into FOLDER --seed 2 holes pinholes
    tools/workloads.py --into FOLDER --scale 0.05 --iterations 2   small and quick
"""

import argparse
import collections
import dataclasses
import itertools
import os
import random
import shutil
import sys
import time

from serving_trace import save

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclasses.dataclass(slots=True, eq=False)
class Block:
    id: int
    bytes: int
    live: bool = True


class Trace:
    """Writes down requests. One that no correct program makes is a ValueError."""

    def __init__(self, about):
        self.lines = ["# stillmap-trace v1", f"# {about}"]
        self.blocks = self.boundaries = self.streams = 0
        self.live_bytes = self.peak_bytes = 0

    def allocate(self, bytes_, stream=0):
        check(1 <= bytes_ < 2**48, f"a block of {bytes_} bytes")
        self.see(stream)
        block = Block(self.blocks, bytes_)
        self.lines.append(f"a,{block.id},{bytes_},{stream}")
        self.blocks += 1
        self.live_bytes += bytes_
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return block

    def free(self, *blocks):
        for block in blocks:
            check(block.live, f"block {block.id} is freed twice")
            self.lines.append(f"f,{block.id}")
            self.live_bytes -= block.bytes
            block.live = False

    def use(self, block, stream):
        check(block.live, f"block {block.id} is used after its free")
        self.see(stream)
        self.lines.append(f"u,{block.id},{stream}")

    def wait(self, stream, other):
        """`stream` waits for the work queued on `other`."""
        check(stream != other, f"stream {stream} waits for itself")
        self.see(stream)
        self.see(other)
        self.lines.append(f"s,{other},{stream}")

    def boundary(self):
        self.lines.append("i")
        self.boundaries += 1

    def see(self, stream):
        check(0 <= stream < 4096, f"stream {stream} is over the limit")
        self.streams = max(self.streams, stream + 1)

    def text(self):
        return "\n".join(self.lines) + "\n"


def check(holds, wrong):
    if not holds:
        raise ValueError(wrong)


def scaled(count, scale, least=1):
    return max(least, round(count * scale))


def log_uniform(dice, low, high):
    """From low up to high, both powers of two: each doubling is equally likely."""
    power = 1 << dice.randrange(low.bit_length() - 1, high.bit_length() - 1)
    return dice.randrange(power, 2 * power)


def take_random(dice, blocks):
    at = dice.randrange(len(blocks))
    blocks[at], blocks[-1] = blocks[-1], blocks[at]
    return blocks.pop()


class RandomLifetimes:
    """Blocks within a budget of live bytes: random ones are freed to make room for a new one."""

    def __init__(self, trace, dice, budget):
        self.trace, self.dice, self.budget = trace, dice, budget
        self.blocks, self.bytes = [], 0

    def allocate(self, bytes_, stream=0):
        while self.blocks and self.bytes + bytes_ > self.budget:
            self.free_one()
        self.blocks.append(self.trace.allocate(bytes_, stream))
        self.bytes += bytes_
        return self.blocks[-1]

    def free_one(self):
        block = take_random(self.dice, self.blocks)
        self.bytes -= block.bytes
        self.trace.free(block)


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A decoder in bfloat16 with grouped heads, fused attention and a gated MLP."""

    layers: int
    width: int
    kv_width: int  # of the keys of all heads, and of the values
    inner: int  # width within the MLP
    vocabulary: int = 128256
    experts: int = 1  # MLPs in a layer

    def deep(self, scale):
        return dataclasses.replace(self, layers=scaled(self.layers, scale, least=2))

    def layer_weights(self):
        """Bytes of: two norms; query, key and value; output; gate and up; down."""
        width, mlp = self.width, self.experts * self.width * self.inner
        qkv = self.width * (self.width + 2 * self.kv_width)
        return [2 * width, 2 * width, 2 * qkv, 2 * width**2, 4 * mlp, 2 * mlp]

    def embedding(self):
        return 2 * self.vocabulary * self.width

    def allocate_weights(self, trace, copies=1):
        """With the optimizer's two states, three copies."""
        for bytes_ in copies * (2 * [self.embedding()] + self.layers * self.layer_weights()):
            trace.allocate(bytes_)

    def hidden(self, tokens):
        return 2 * tokens * self.width

    # Activations: (bytes, saved for the backward pass), in the order in which they are made.
    def attention(self, tokens):
        """Norm; query, key and value; attention; projection; sum."""
        hidden, qkv = self.hidden(tokens), 2 * tokens * (self.width + 2 * self.kv_width)
        return [(hidden, True), (qkv, True), (hidden, True), (hidden, False), (hidden, True)]

    def mlp(self, tokens):
        """Norm; gate and up; their product; down; sum."""
        hidden, inner = self.hidden(tokens), 2 * tokens * self.inner
        return [(hidden, True), (2 * inner, True), (inner, True), (hidden, False), (hidden, True)]

    def layer(self, tokens):
        return self.attention(tokens) + self.mlp(tokens)


LLAMA_8B = Transformer(layers=32, width=4096, kv_width=1024, inner=14336)
LLAMA_1B = Transformer(layers=16, width=2048, kv_width=512, inner=8192)


def forward(trace, activations):
    """Returns the saved activations of a layer, its output last. Others live until the next one."""
    saved, temporary = [], None
    for bytes_, needed in activations:
        block = trace.allocate(bytes_)
        if temporary:
            trace.free(temporary)
        temporary = None if needed else block
        if needed:
            saved.append(block)
    return saved


def forward_unsaved(trace, activations):
    """Returns a layer's output. Each activation is freed when the next one is there."""
    block = None
    for bytes_, _ in activations:
        following = trace.allocate(bytes_)
        if block:
            trace.free(block)
        block = following
    return block


def backward(trace, saved, gradient):
    """Goes from the gradient of the last saved activation to that of the first, and frees them."""
    for block in reversed(saved):
        following = trace.allocate(block.bytes)
        trace.free(gradient, block)
        gradient = following
    return gradient


def update_weights(trace, gradients):
    """An optimizer in float32, weight by weight."""
    for gradient in gradients:
        trace.free(trace.allocate(2 * gradient.bytes))
    trace.free(*gradients)


def train(trace, model, tokens):
    """A step: forward, loss, backward, optimizer."""
    embedded = trace.allocate(model.hidden(tokens))
    layers = [forward(trace, model.layer(tokens)) for _ in range(model.layers)]
    logits = trace.allocate(2 * tokens * model.vocabulary)
    of_loss = trace.allocate(4 * tokens * model.vocabulary)
    gradient = backward(trace, [logits], of_loss)
    gradients = [trace.allocate(model.embedding())]
    for layer in reversed(layers):
        gradient = backward(trace, layer, gradient)
        gradients += [trace.allocate(bytes_) for bytes_ in model.layer_weights()]
    gradients.append(trace.allocate(model.embedding()))
    trace.free(gradient, embedded)
    update_weights(trace, gradients)


def infer(trace, model, tokens, sampled, before_layer=lambda layer: None):
    """A forward pass without gradients, then the probabilities of the sampled tokens."""
    hidden = trace.allocate(model.hidden(tokens))
    for layer in range(model.layers):
        before_layer(layer)
        output = forward_unsaved(trace, model.layer(tokens))
        trace.free(hidden)
        hidden = output
    logits = trace.allocate(2 * sampled * model.vocabulary)
    trace.free(hidden)
    probabilities = trace.allocate(4 * sampled * model.vocabulary)
    trace.free(logits, probabilities)


@dataclasses.dataclass(eq=False)
class Request:
    prompt: int  # tokens
    answer: int
    cached: int = 0
    kv: list = dataclasses.field(default_factory=list)

    @property
    def finished(self):
        return self.cached >= self.prompt + self.answer


def end_finished(trace, running):
    for request in [r for r in running if r.finished]:
        trace.free(*request.kv)
        running.remove(request)


# The workloads are generators: what is done before the first `yield` makes the model, what is done
# from one to the next is an iteration.


def serving_kv_blocks(trace, dice, scale):
    """An inference server such as vLLM: continuous batching of an 8B model, the KV cache in blocks
    of 64 tokens, prompts in chunks of 2048, activations as large as the batch; 48 steps."""
    model = LLAMA_8B.deep(scale)
    model.allocate_weights(trace)
    kv_block = 64 * model.layers * 4 * model.kv_width
    running, waiting = [], None

    while True:
        yield
        for _ in range(48):
            if waiting is None:
                waiting = Request(log_uniform(dice, 32, 8192), log_uniform(dice, 32, 1024))
            promised = sum(r.prompt + r.answer for r in running + [waiting])
            prefilling = running and running[-1].cached < running[-1].prompt
            if not prefilling and promised <= 160 * KIB:
                running.append(waiting)
                waiting = None
            batch = 0
            for request in running:
                tokens = max(1, min(2048, request.prompt - request.cached))
                batch += tokens
                request.cached += tokens
                while 64 * len(request.kv) < request.cached:
                    request.kv.append(trace.allocate(kv_block))
            infer(trace, model, batch, len(running))
            end_finished(trace, running)


def serving_variable_length(trace, dice, scale):
    """An inference loop such as Transformers' with dynamic caches: a layer's keys and values of a
    request are one tensor, which each token replaces by a longer one; 16 requests, 18 steps."""
    model = LLAMA_8B.deep(scale)
    model.allocate_weights(trace)
    running = []

    def run(requests, tokens):
        def concatenate(layer):
            for request in requests:
                longer = trace.allocate(request.cached * 4 * model.kv_width)
                if request.kv[layer]:
                    trace.free(request.kv[layer])
                request.kv[layer] = longer

        for request in requests:
            request.cached += tokens
        infer(trace, model, tokens * len(requests), len(requests), concatenate)

    while True:
        yield
        for _ in range(18):
            if len(running) < 16:
                prompt, answer = log_uniform(dice, 256, 16384), log_uniform(dice, 16, 128)
                running.append(Request(prompt, answer, kv=model.layers * [None]))
                run(running[-1:], prompt)
            run(running, 1)
            end_finished(trace, running)


def mixture_of_experts(trace, dice, scale):
    """Training of a mixture of experts that drops no token: each of 16384 tokens goes to 4 of 32
    experts, and how many each one gets differs in every layer and step."""
    model = Transformer(layers=12, width=2048, kv_width=512, inner=1024, experts=32).deep(scale)
    model.allocate_weights(trace, copies=3)
    tokens, routed = 16384, 4 * 16384

    def route():
        """The tokens of each expert: half of them evenly, half of them at random."""
        even = routed // 2 // model.experts
        rest = routed - even * model.experts
        cuts = sorted(dice.randrange(rest + 1) for _ in range(model.experts - 1))
        return [even + end - begin for begin, end in zip([0] + cuts, cuts + [rest])]

    while True:
        yield
        layers = []
        for _ in range(model.layers):
            attention = forward(trace, model.attention(tokens))
            experts = [forward(trace, model.mlp(count)) for count in route()]
            layers.append((attention, experts, trace.allocate(model.hidden(tokens))))
        gradient, gradients = trace.allocate(model.hidden(tokens)), []
        for attention, experts, output in reversed(layers):
            gradient = backward(trace, [output], gradient)
            for expert in reversed(experts):
                of_output = trace.allocate(expert[-1].bytes)
                trace.free(backward(trace, expert, of_output))
            gradient = backward(trace, attention, gradient)
            gradients += [trace.allocate(bytes_) for bytes_ in model.layer_weights()]
        trace.free(gradient)
        update_weights(trace, gradients)


def variable_images_checkpointed(trace, dice, scale):
    """Training of a detector on a ResNet-152 with activation checkpointing: 16 images, of another
    size in each iteration; each block of layers runs again before its backward pass."""
    stages = [(256, 4, 3), (512, 8, 8), (1024, 16, 36), (2048, 32, 3)]
    blocks = [(channels, stride) for channels, stride, count in stages
              for _ in range(scaled(count, scale))]  # fmt: skip

    def weights(channels):
        narrow = channels // 4
        return [4 * channels * narrow, 4 * 9 * narrow**2, 4 * narrow * channels]

    def activations(pixels, channels):
        """Two convolutions to a quarter of the channels with their norms; one back; norm; sum."""
        narrow, wide = 2 * pixels * channels // 4, 2 * pixels * channels
        return 4 * [(narrow, True)] + [(wide, True), (wide, False), (wide, True)]

    for channels, _ in 2 * blocks:  # weights and momentum
        for bytes_ in weights(channels):
            trace.allocate(bytes_)

    while True:
        yield
        height, width = 32 * dice.randrange(15, 26), 32 * dice.randrange(20, 43)
        layers = [activations(16 * (height // stride) * (width // stride), channels)
                  for channels, stride in blocks]  # fmt: skip
        checkpoints = [trace.allocate(2 * 16 * 3 * height * width)]
        for layer in layers:
            checkpoints.append(forward_unsaved(trace, layer))
        gradient, gradients = checkpoints.pop(), []
        for layer, (channels, _) in zip(reversed(layers), reversed(blocks)):
            recomputed = [checkpoints.pop()] + forward(trace, layer)
            gradient = backward(trace, recomputed, gradient)
            gradients += [trace.allocate(bytes_) for bytes_ in weights(channels)]
        trace.free(gradient)
        update_weights(trace, gradients)


def below_powers_of_two(trace, dice, scale):
    """Buffers with headers or padding: sizes slightly below powers of two from 1 KiB to 256 MiB,
    a fifth of them slightly above, with random lifetimes."""
    live = RandomLifetimes(trace, dice, scaled(24 * GIB, scale))
    while True:
        yield
        for _ in range(scaled(16000, scale)):
            power = 1 << dice.randrange(10, 29)
            difference = dice.randrange(1, power // 16)
            live.allocate(power + difference if dice.random() < 0.2 else power - difference)


def cross_streams(trace, dice, scale):
    """A program of kernels and copies on 16 streams: blocks made on one stream are used on up to
    three others, and each stream has blocks of its own."""
    streams = 16
    shared = RandomLifetimes(trace, dice, scaled(12 * GIB, scale))
    own = [RandomLifetimes(trace, dice, scaled(GIB // 2, scale)) for _ in range(streams)]
    while True:
        yield
        for _ in range(scaled(2800, scale)):
            stream = dice.randrange(streams)
            own[stream].allocate(log_uniform(dice, 64 * KIB, 16 * MIB), stream)
            block = shared.allocate(log_uniform(dice, 256 * KIB, 128 * MIB), stream)
            others = [other for other in range(streams) if other != stream]
            for _ in range(dice.randrange(1, 4)):
                other = take_random(dice, others)
                trace.wait(other, stream)
                trace.use(block, other)
                if dice.random() < 0.5:  # else this use may be pending when the block is freed
                    trace.wait(stream, other)
        for other in range(1, streams):
            trace.wait(0, other)
        for other in range(1, streams):
            trace.wait(other, 0)


def reuse_as_large_blocks(trace, dice, blocks):
    """Frees blocks, then takes and frees as many bytes in requests of 64 to 512 MiB."""
    room, large = sum(block.bytes for block in blocks), []
    trace.free(*blocks)
    while room > 0:
        large.append(trace.allocate(min(room, dice.randrange(64 * MIB, 512 * MIB))))
        room -= large[-1].bytes
    trace.free(*large)


def holes(trace, dice, scale):
    """Caches filled between temporaries: freeing the short-lived blocks leaves holes of 1 to 64 MiB
    between long-lived ones, and the requests that follow are larger than any hole."""
    long_lived = []
    while True:
        yield
        short_lived = []
        for _ in range(scaled(1000, scale)):
            long_lived.append(trace.allocate(log_uniform(dice, 256 * KIB, 8 * MIB)))
            short_lived.append(trace.allocate(log_uniform(dice, MIB, 64 * MIB)))
        reuse_as_large_blocks(trace, dice, short_lived)
        for _ in range(len(long_lived) // 2):
            trace.free(take_random(dice, long_lived))


def pinholes(trace, dice, scale):
    """A worst case for allocators that move pages: of each 2 MiB in blocks of 16 to 512 KiB one
    block survives until the next iteration, and large requests need what the others had."""
    survivors = []
    while True:
        yield
        earlier, survivors, short_lived = survivors, [], []
        for _ in range(scaled(2000, scale)):
            page, bytes_ = [], 0
            while bytes_ < 2 * MIB:
                page.append(trace.allocate(dice.randrange(16 * KIB, 512 * KIB + 1)))
                bytes_ += page[-1].bytes
            survivors.append(take_random(dice, page))
            short_lived += page
        reuse_as_large_blocks(trace, dice, short_lived)
        trace.free(*earlier)


def growing_vectors(trace, dice, scale):
    """Containers of a data-processing program: 48 vectors grow by half (allocate, copy, free) to
    random sizes of 32 MiB to 1 GiB, end, and begin again."""

    def begin():
        return trace.allocate(log_uniform(dice, 64 * KIB, MIB)), log_uniform(dice, 32 * MIB, GIB)

    vectors = [begin() for _ in range(scaled(48, scale, least=2))]
    while True:
        yield
        for _ in range(scaled(4000, scale)):
            at = dice.randrange(len(vectors))
            block, limit = vectors[at]
            if block.bytes < limit:
                vectors[at] = trace.allocate(block.bytes * 3 // 2), limit
                trace.free(block)
            else:
                trace.free(block)
                vectors[at] = begin()


def training_with_evaluation(trace, _, scale):
    """Training of a 1B model, each step alike, with an evaluation of other sizes after every tenth.
    An iteration is one step, and there are five for each of --iterations: 40 by default."""
    model, tokens = LLAMA_1B.deep(scale), 4 * 2048
    model.allocate_weights(trace, copies=3)

    for step in itertools.count(1):
        yield
        train(trace, model, tokens)
        if step % 10 == 0:
            for sequences in (12, 12, 5):  # the last batch has the rest of the data
                infer(trace, model, sequences * 1280, sequences * 1280)


def training_random_lengths(trace, dice, scale):
    """Training of a 1B model with sequences of another length in each step: weights, gradients and
    the optimizer recur, activations never. An iteration is ten steps."""
    model = LLAMA_1B.deep(scale)
    model.allocate_weights(trace, copies=3)
    while True:
        yield
        for _ in range(10):
            train(trace, model, 4 * 8 * dice.randrange(16, 257))


def tiny_blocks(trace, dice, scale):
    """Many small objects, such as a graph on the device: a million blocks of 16 bytes to 2 KiB
    beside 2 GiB of large ones; an iteration replaces 60,000 of them."""

    def allocate(count):
        return [trace.allocate(log_uniform(dice, 16, 2 * KIB)) for _ in range(count)]

    for _ in range(8):
        trace.allocate(256 * MIB)
    live, replaced = allocate(scaled(1_000_000, scale)), scaled(60_000, scale)
    while True:
        yield
        for _ in range(replaced):
            trace.free(take_random(dice, live))
        live += allocate(replaced)


def pipeline_1f1b(trace, _, scale):
    """The first of four stages of pipeline-parallel training, one forward, one backward: 16
    micro-batches of 4096 tokens, the activations of up to four of them live."""
    stages, tokens = 4, 4096
    model = dataclasses.replace(LLAMA_8B, layers=LLAMA_8B.layers // stages).deep(scale)
    for bytes_ in model.layers * model.layer_weights():
        trace.allocate(bytes_)
        trace.allocate(2 * bytes_)  # sums of gradients, in float32
        trace.allocate(3 * 2 * bytes_ // 8)  # the optimizer's states, split among eight replicas

    def run_forward():
        received = trace.allocate(model.hidden(tokens))
        return [[received]] + [forward(trace, model.layer(tokens)) for _ in range(model.layers)]

    def run_backward(layers):
        gradient = trace.allocate(model.hidden(tokens))
        for layer in reversed(layers[1:]):
            gradient = backward(trace, layer, gradient)
            for bytes_ in model.layer_weights():
                trace.free(trace.allocate(bytes_))  # the gradient, until it is added to the sum
        trace.free(backward(trace, layers[0], gradient))

    while True:
        yield
        in_flight = collections.deque()
        for _ in range(16):
            in_flight.append(run_forward())
            if len(in_flight) == stages:
                run_backward(in_flight.popleft())
        while in_flight:
            run_backward(in_flight.popleft())


def sharded_three_streams(trace, _, scale):
    """Training with sharded weights such as ZeRO-3 or FSDP on eight ranks: a layer's weights are
    gathered on one stream while the layer before runs, its gradients are reduced on another."""
    compute, gather, reduce = range(3)
    ranks, tokens = 8, 4096
    model = LLAMA_8B.deep(scale)
    layer_bytes = sum(model.layer_weights())
    for _ in range(model.layers):
        trace.allocate(layer_bytes // ranks)
        for _ in range(3):  # weights and two states, in float32
            trace.allocate(2 * layer_bytes // ranks)

    def gather_weights():
        trace.wait(gather, compute)  # limits what is gathered to two layers
        return trace.allocate(layer_bytes, gather)

    def each_layer():
        """Goes on to a layer when its weights are gathered, and gathers the next one's."""
        following = gather_weights()
        for layer in range(1, model.layers + 1):
            weights = following
            trace.wait(compute, gather)
            trace.use(weights, compute)
            if layer < model.layers:
                following = gather_weights()
            yield
            trace.free(weights)

    while True:
        yield
        layers = [forward(trace, model.layer(tokens)) for _ in each_layer()]
        gradient, shards = trace.allocate(model.hidden(tokens)), []
        for _ in each_layer():
            gradient = backward(trace, layers.pop(), gradient)
            whole = trace.allocate(layer_bytes, compute)
            trace.wait(reduce, compute)
            shards.append(trace.allocate(2 * layer_bytes // ranks, reduce))
            trace.use(whole, reduce)
            trace.free(whole)
        trace.free(gradient)
        trace.wait(compute, reduce)
        for shard in shards:
            trace.use(shard, compute)
        update_weights(trace, shards)


def exact_random_loop(trace, dice, scale, streams=1):
    """The main loop of some program: allocations of 512 bytes to 1 GiB with random lifetimes, the
    same ones in each iteration."""
    seed = dice.getrandbits(64)
    while True:
        yield
        same = random.Random(seed)
        live = RandomLifetimes(trace, same, scaled(24 * GIB, scale))
        for _ in range(scaled(6000, scale)):
            stream = same.randrange(streams)
            block = live.allocate(log_uniform(same, 512, GIB), stream)
            if streams > 1 and same.random() < 0.4:
                other = (stream + same.randrange(1, streams)) % streams
                trace.wait(other, stream)
                trace.use(block, other)
        while live.blocks:
            live.free_one()


def exact_random_loop_streams(trace, dice, scale):
    """The same kind of loop on 4 streams; two of five blocks are used on a second one."""
    return exact_random_loop(trace, dice, scale, streams=4)


WORKLOADS = {workload.__name__: workload for workload in (
    serving_kv_blocks, serving_variable_length, mixture_of_experts, variable_images_checkpointed,
    below_powers_of_two, cross_streams, holes, pinholes, growing_vectors, training_with_evaluation,
    training_random_lengths, tiny_blocks, pipeline_1f1b, sharded_three_streams,
    exact_random_loop, exact_random_loop_streams,
)}  # fmt: skip


def generate(name, seed=1, iterations=8, scale=1.0):
    about = f"seed {seed}, iterations {iterations}, scale {scale:g}"
    trace = Trace(f"{name}: tools/workloads.py, {about}")
    workload = WORKLOADS[name](trace, random.Random(seed), scale)
    if name == "training_with_evaluation":
        iterations *= 5
    for _ in range(1 + iterations):
        next(workload)
        trace.boundary()
    return trace


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all workloads")
    parser.add_argument("--list", action="store_true", help="describe the workloads and stop")
    parser.add_argument("--into", metavar="FOLDER", help="for NAME.trace.zst (.trace: no `zstd`)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default 1")
    parser.add_argument("--iterations", type=int, default=8, metavar="N", help="default 8")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X",
                        help="X times the memory: models have X times the layers, others X times "
                        "the blocks (default 1: peaks of 2 to 33 GiB)")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.list:
        for name, workload in WORKLOADS.items():
            print(f"{name}\n    {workload.__doc__}")
        return
    unknown = [name for name in options.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"there is no workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
    if options.into is None:
        parser.error("name a folder: --into FOLDER")
    if options.iterations < 1 or not 0 < options.scale <= 100:
        parser.error("--iterations is at least 1, --scale over 0 and at most 100")
    os.makedirs(options.into, exist_ok=True)
    ending = ".trace.zst" if shutil.which("zstd") else ".trace"
    row = "{:28}  {:>9}  {:>9}  {:>10}  {:>7}  {:>8}  {:>7}".format
    print(row("workload", "lines", "blocks", "iterations", "streams", "peak GiB", "seconds"))
    for name in options.names or WORKLOADS:
        began = time.monotonic()
        trace = generate(name, options.seed, options.iterations, options.scale)
        save(os.path.join(options.into, name + ending), trace.text(), level=3)
        print(row(name, len(trace.lines), trace.blocks, trace.boundaries - 1, trace.streams,
                  f"{trace.peak_bytes / GIB:.2f}", f"{time.monotonic() - began:.1f}"),
              flush=True)  # fmt: skip


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(0)
