"""Ten thousand tensors on three streams under one of PyTorch's allocators: every byte is compared, and PyTorch's
statistics with what the device has given.

    torch_tensors.py native|expandable|async|stillmap|mempool [libstillmap_torch.so]

`expandable` and `async` are settings that PyTorch reads when it starts (PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF).
"""
import contextlib
import ctypes
import json
import random
import sys

import torch

TENSORS = 10_000
SIZES = (1, 7, 100, 1_000, 5_000, 20_000, 70_000)  # elements of 4 bytes


class Tensors:
    def __init__(self):
        self.dice = random.Random(7)
        self.streams = [torch.cuda.Stream() for _ in range(3)]
        self.live = []  # (tensor, its contents, the stream that it was made on)
        self.made = self.checked = 0

    def make(self, stream):
        count = self.dice.choice(SIZES)
        contents = torch.full((count,), self.made, dtype=torch.int32) + torch.arange(count, dtype=torch.int32)
        with torch.cuda.stream(stream):
            tensor = torch.empty(count, dtype=torch.int32, device="cuda")
            tensor.copy_(contents)
        self.made += 1
        self.live.append((tensor, contents, stream))

    def double(self):
        """Resizes a tensor on its own stream, which copies its contents, and fills the new half."""
        i = self.dice.randrange(len(self.live))
        tensor, contents, stream = self.live[i]
        contents = torch.cat([contents, contents])
        count = tensor.numel()
        with torch.cuda.stream(stream):
            tensor.untyped_storage().resize_(8 * count)
            tensor = tensor.set_(tensor.untyped_storage(), 0, (2 * count,))
            tensor[count:].copy_(contents[count:])
        self.live[i] = (tensor, contents, stream)

    def check(self, i, used_on):
        tensor, contents, stream = self.live.pop(i)
        stream.synchronize()
        if not torch.equal(tensor.cpu(), contents):
            raise SystemExit("tensor of %d elements has wrong contents" % contents.numel())
        tensor.record_stream(used_on)
        self.checked += 1

    def run(self):
        while self.made < TENSORS:
            stream, verb = self.dice.choice(self.streams), self.dice.random()
            if not self.live or verb < 0.55:
                self.make(stream)
            elif verb < 0.65:
                self.double()
            else:
                self.check(self.dice.randrange(len(self.live)), stream)
        while self.live:
            self.check(0, self.streams[0])
        torch.cuda.synchronize()


def taken():
    free, total = torch.cuda.mem_get_info()
    return total - free


def main():
    kind = sys.argv[1]
    pool = contextlib.nullcontext()
    if kind in ("stillmap", "mempool"):
        heap = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[2], "stillmap_malloc", "stillmap_free")
        if kind == "stillmap":
            torch.cuda.memory.change_current_allocator(heap)
        else:
            pool = torch.cuda.use_mem_pool(torch.cuda.MemPool(heap.allocator()))
    tensors = Tensors()
    with pool:
        tensors.run()
        if kind == "stillmap":
            library, text = ctypes.CDLL(sys.argv[2]), ctypes.create_string_buffer(4096)
            library.stillmap_stats(0, text, len(text))
            live, held = (json.loads(text.value)[name] for name in ("live_bytes", "committed_bytes"))
        else:
            stats = torch.cuda.memory_stats()
            live, held = (stats["%s_bytes.all.current" % name] for name in ("allocated", "reserved"))
    if tensors.checked != tensors.made or live != 0 or held != taken():
        raise SystemExit("%d of %d checked, %d bytes live, %d held, the device has given %d" %
                         (tensors.checked, tensors.made, live, held, taken()))
    print("%s: %d tensors, %d MiB held" % (kind, tensors.checked, held >> 20))


if __name__ == "__main__":
    main()
