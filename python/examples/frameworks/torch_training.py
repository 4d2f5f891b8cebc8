"""A PyTorch training loop that gives its memory back in the middle, and goes on.

On hostcuda: hostcuda run --kernels skip -- python torch_training.py  (losses mean nothing there)
"""

import torch

import stillmap
import stillmap.torch

recording = stillmap.record("training.trace")  # only for report(), at the end
stillmap.torch.use()  # before the first tensor on the GPU

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())
MiB = 1 << 20


def step(length):
    batch = torch.randn(length, 1024).cuda()
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


for n in range(20):
    step(64 * (1 + n % 7))
    if n == 9:
        before = {name: p.detach().cpu() for name, p in model.named_parameters()}
        told = stillmap.torch.suspend("torch")  # all of PyTorch's memory: weights, optimizer, cache
        print(f"suspended: {told['released_bytes'] / MiB:.0f} MiB are the device's")
        stillmap.torch.resume("torch")
        assert all(torch.equal(p.detach().cpu(), before[name]) for name, p in model.named_parameters())
        print("resumed: every weight is as it was, at its address")

print(stillmap.torch.memory_summary())
print(stillmap.torch.report(recording))
