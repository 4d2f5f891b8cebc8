"""Training loops without results: kernels are skipped, memory and calls are real. Prints the memory of each step.

    torch_training.py transformer|convolutions
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


def main():
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


if __name__ == "__main__":
    main()
