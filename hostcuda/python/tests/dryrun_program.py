"""Run by `hostcuda dryrun` with fake_torch: 64 MiB at the peak, which a later reset must not hide, and a loop until
the device's memory says so."""
import torch

tensor = torch.Tensor(64 << 20)
torch.cuda.reset_peak_memory_stats()
for _ in range(3):
    tensor.item()
turns = 0
while not tensor:
    turns += 1
print("%d turns" % turns)
