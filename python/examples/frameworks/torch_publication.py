"""A model that one process loads, and several have: stillmap.torch.attach_or_load.

On hostcuda: hostcuda run --kernels skip --config machine=example -- python torch_publication.py
"""

import multiprocessing
import os
import tempfile

import torch

import stillmap
import stillmap.torch


def load():
    print(os.getpid(), "loads")
    return torch.nn.Linear(2048, 2048, device="cuda").state_dict(keep_vars=True)


def serve(name, holder, told, go_on):
    # [attach]
    state = stillmap.torch.attach_or_load(name, load, holder=holder)  # one process calls load()
    model = torch.nn.Linear(2048, 2048, device="meta")
    model.load_state_dict(state, assign=True)  # nothing is copied
    # [/attach]
    told.put((model.weight.data_ptr(), model.weight[0, :2].tolist()))
    go_on.get()


def main():
    spawn = multiprocessing.get_context("spawn")
    address = os.path.join(tempfile.mkdtemp(), "holder")
    told, go_on = spawn.Queue(), spawn.Queue()
    with stillmap.PublicationHolder(address) as holder:
        workers = [spawn.Process(target=serve, args=("linear", address, told, go_on)) for _ in range(2)]
        for worker in workers:
            worker.start()
        seen = [told.get() for _ in workers]
        assert seen[0] == seen[1], seen
        print("one copy of", holder.publications()[0]["nbytes"] >> 20, "MiB for", len(workers), "processes")
        for worker in workers:
            go_on.put("end")
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0


if __name__ == "__main__":
    main()
