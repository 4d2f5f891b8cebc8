"""Training on two devices by one process each, started by torchrun: nothing is moved between them, memory is real.

    torch_distributed.py ddp|fsdp|fully_shard
"""
import functools
import os
import sys

import torch
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

WIDTH, LAYERS, STEPS = 2048, 8, 4
WHOLE = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)  # bytes of the parameters


def layers():
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).cuda()


def ddp(rank):
    return nn.parallel.DistributedDataParallel(layers(), device_ids=[rank])


def fsdp(rank):
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=WIDTH * WIDTH)
    return FullyShardedDataParallel(layers(), auto_wrap_policy=policy, device_id=rank)


def sharded(_):
    model = layers()
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def main():
    kind, rank = sys.argv[1], int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl")
    model = {"ddp": ddp, "fsdp": fsdp, "fully_shard": sharded}[kind](rank)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        model(torch.randn(64, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.barrier()
    torch.cuda.synchronize()
    # Parameters and the two moments of AdamW: all of them with DDP, half of them with the others.
    expected = 3 * WHOLE // (1 if kind == "ddp" else 2)
    live = torch.cuda.memory_allocated()
    print("%s, rank %d: %d MiB after a step, %d of them parameters and moments, %d at the peak" % (
        kind, rank, live >> 20, expected >> 20, torch.cuda.max_memory_allocated() >> 20), flush=True)
    # What DDP keeps besides differs from run to run. A sharded program has less than all.
    if live < expected or kind != "ddp" and live >= 3 * WHOLE:
        raise SystemExit("%s: %d bytes after a step" % (kind, live))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
