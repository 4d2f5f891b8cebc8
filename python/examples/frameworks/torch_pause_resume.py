"""A program written for torch_memory_saver, with one import replaced.

On hostcuda: hostcuda run --kernels skip -- python torch_pause_resume.py
"""

import torch

from stillmap.memory_saver import torch_memory_saver

with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
    weights = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
with torch_memory_saver.region(tag="kv_cache"):
    kv_cache = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
weights.copy_(torch.arange(64 << 20) % 251)
free = torch.cuda.mem_get_info()[0]
torch_memory_saver.pause()
print(f"paused: {(torch.cuda.mem_get_info()[0] - free) >> 20} MiB more are free")
print("its first bytes on the CPU:", torch_memory_saver.get_cpu_backup(weights)[:4].tolist())
torch_memory_saver.resume("weights")
torch_memory_saver.resume("kv_cache")
print("resumed:", weights[:4].tolist())
