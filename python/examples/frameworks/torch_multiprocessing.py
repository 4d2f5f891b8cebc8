"""A CUDA tensor in another process: the same memory, without a copy.

On hostcuda: hostcuda run --kernels skip -- python torch_multiprocessing.py
"""

# [sharing]
import torch
import torch.multiprocessing as mp

import stillmap.torch


def worker(weights, results):
    tensor = weights.get()  # the sender's memory, mapped at another address
    results.put(tensor.cpu().sum().item())
    tensor.copy_(torch.arange(1000.0))
    del tensor  # from here on the sender may reuse or suspend it
    results.put("done")


if __name__ == "__main__":
    stillmap.torch.use(exportable=True)  # the receiver needs no call
    context = mp.get_context("spawn")
    weights, results = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=worker, args=(weights, results))
    process.start()
    tensor = torch.ones(1000).cuda()
    weights.put(tensor)
    print("the sum there:", results.get())
    assert results.get() == "done" and tensor[999].item() == 999
    stillmap.torch.suspend("torch")
    process.join()
# [/sharing]
