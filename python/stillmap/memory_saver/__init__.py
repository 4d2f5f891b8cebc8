"""The interface of torch_memory_saver, on Stillmap. Replace the import, and nothing else:

    from stillmap.memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        weights = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    torch_memory_saver.pause("weights")      # the device has the memory; data_ptr() stays
    torch_memory_saver.resume("weights")

Names and defaults are those of torch_memory_saver 0.0.10. docs/memory_saver.md says what differs.
"""

from ._saver import TorchMemorySaver, configure_subprocess

torch_memory_saver = TorchMemorySaver()
torch_memory_saver._take_process()

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]
