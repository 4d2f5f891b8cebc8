"""Training loops without results: kernels are skipped, memory and calls are real. Prints the memory of each step.

    torch_training.py transformer|convolutions|graph
"""
import sys

import torch
from torch import nn

STEPS = 5


def transformer():
    layers = [nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(6)]
    return nn.Sequential(*layers), (8, 512, 512)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), (16, 3, 224, 224)


def graph():
    """Captures steps of a transformer, each with another number of tokens, and replays them."""
    model, (batch, _, width) = transformer()
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)

    def step(tokens):
        model(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    inputs = [torch.randn(batch, length, width, device="cuda") for length in (512, 256, 384)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for tokens in inputs:
            step(tokens)
    torch.cuda.current_stream().wait_stream(side)
    graphs, before = [], torch.cuda.memory_reserved()
    for tokens in inputs:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], pool=graphs[0].pool() if len(graphs) > 1 else None):
            step(tokens)
    for _ in range(STEPS):
        for one in graphs:
            one.replay()
    torch.cuda.synchronize()
    print("graph: %d MiB held, %d before the captures" % (torch.cuda.memory_reserved() >> 20, before >> 20))


def main():
    if sys.argv[1] == "graph":
        return graph()
    model, shape = {"transformer": transformer, "convolutions": convolutions}[sys.argv[1]]()
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    peaks = []
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        model(torch.randn(*shape, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
    if peaks[-1] != peaks[-2] or peaks[-1] == 0:
        raise SystemExit("the peaks of the last two steps differ: %s" % peaks)
    print("%s: %d MiB at the peak of a step" % (sys.argv[1], peaks[-1] >> 20))
    return None


if __name__ == "__main__":
    main()
