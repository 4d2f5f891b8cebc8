"""Run by `hostcuda dryrun` with fake_torch: 64 MiB at the peak, which a later reset must not hide."""
import torch

tensor = torch.Tensor(64 << 20)
torch.cuda.reset_peak_memory_stats()
for _ in range(3):
    tensor.item()
