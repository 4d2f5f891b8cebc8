"""CUDA graphs of random sizes under one of PyTorch's allocators, captured and replayed between other tensors: after each
replay every byte is compared. The graphs consist of copies, which hostcuda performs; it runs no kernel of PyTorch.

    torch_graphs.py native|stillmap [libstillmap_torch.so]
"""
import pathlib
import random
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/gpu/torch_check"))
import allocators

STEPS = 120
UNIT = 100_000  # bytes


class Graphs:
    def __init__(self):
        self.dice = random.Random(7)
        self.side = torch.cuda.Stream()
        self.graphs = []  # (graph, its input, its output)
        self.others = []  # (tensor, the value of its bytes)
        self.replays = 0

    def tensor(self, most):
        return torch.empty(self.dice.randrange(1, most) * UNIT, dtype=torch.uint8, device="cuda")

    @staticmethod
    def fill(tensor, value):
        tensor.copy_(torch.full((tensor.numel(),), value, dtype=torch.uint8))

    @staticmethod
    def check(tensor, value, what):
        if not bool((tensor.cpu() == value).all()):
            raise SystemExit("%s of %d bytes has wrong contents" % (what, tensor.numel()))

    def capture(self):
        """Half of the graphs use a second stream too, and half share the memory of an earlier one."""
        source = self.tensor(40)
        result = torch.empty_like(source)
        pool = self.dice.choice(self.graphs)[0].pool() if self.graphs and self.dice.random() < 0.5 else None
        forks = self.dice.random() < 0.5
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            first = source.clone()
            if forks:
                origin = torch.cuda.current_stream()
                self.side.wait_stream(origin)
                with torch.cuda.stream(self.side):
                    second = first.clone()
                origin.wait_stream(self.side)
            else:
                second = first.clone()
            del first  # its memory may serve the next
            result.copy_(second.clone())
            del second
        self.graphs.append((graph, source, result))

    def replay(self):
        for graph, source, result in self.dice.sample(self.graphs, min(4, len(self.graphs))):
            value = self.dice.randrange(256)
            self.fill(source, value)
            self.fill(result, 255 - value)
            graph.replay()
            torch.cuda.synchronize()
            self.check(result, value, "the output of a graph")
            self.replays += 1

    def run(self):
        for _ in range(STEPS):
            self.capture()
            for _ in range(self.dice.randrange(5)):
                value = self.dice.randrange(256)
                self.others.append((self.tensor(60), value))
                self.fill(*self.others[-1])
            while len(self.others) > 30:
                self.others.pop(self.dice.randrange(len(self.others)))
            if self.dice.random() < 0.3:
                torch.cuda.empty_cache()
            self.replay()
            for tensor, value in self.others:
                self.check(tensor, value, "a tensor outside of the graphs")
            while len(self.graphs) > 12:
                self.graphs.pop(self.dice.randrange(len(self.graphs)))
        torch.cuda.synchronize()
        print("%d graphs, %d replays: every byte is right" % (STEPS, self.replays))


def main():
    if sys.argv[1] == "stillmap":
        allocators.connect(torch, sys.argv[2])
    Graphs().run()


if __name__ == "__main__":
    main()
