"""Processes that receive CUDA tensors, for torch_multiprocessing_test.py. In a module, because a process that is started
by `spawn` imports what it runs."""

import functools
import os
import resource
import signal
import sys

import torch
import torch.multiprocessing as mp

BLOCK = 251 << 12


@functools.lru_cache(maxsize=None)
def block(seed):
    return (torch.arange(BLOCK, dtype=torch.int64) * (2 * seed + 1) % 251).to(torch.uint8)


def known(n, seed=1):
    """Bytes that say where they are from."""
    return block(seed)[:n] if n <= BLOCK else block(seed).repeat(-(-n // BLOCK))[:n]


def filled(n, seed=1):
    made = torch.empty(n, dtype=torch.uint8, device="cuda")
    for part in made.split(BLOCK):
        part.copy_(block(seed)[:len(part)])
    return made


def right(tensor, seed=1):
    return all(torch.equal(part, block(seed)[:len(part)]) for part in tensor.cpu().split(BLOCK))


def value(tensor):
    """A copy in host memory with the same strides and offset. No kernel runs on hostcuda, so the storage is copied."""
    storage = tensor.untyped_storage()
    host = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).cpu().untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(host, tensor.storage_offset(), tensor.size(), tensor.stride())


def description(tensor):
    return (type(tensor).__name__, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(),
            tensor.untyped_storage().nbytes(), tensor.requires_grad, tensor.is_conj(), str(tensor.device))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def allow_files(n=4096):
    """On hostcuda, unlike on a GPU, each page for other processes takes a descriptor as long as it lives."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (n, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def run(commands, replies):
    """Runs the code of each command with its objects as `given`; the reply is `result`."""
    allow_files()
    names = dict(globals(), result=None)
    while True:
        result = None
        try:
            command = commands.get()
            if command is None:
                return
            code, names["given"] = command
            command = None  # the code decides when a tensor ends
            exec(code, names)
            result = names["result"]
        except Exception as e:  # the test looks at it
            result = f"{type(e).__name__}: {e}"
        names["given"] = names["result"] = None
        replies.put(result)


class Receiver:
    """A process that runs what it is asked. By `fork` it starts fast: before the first use of a device."""

    def __init__(self, start="fork"):
        context = mp.get_context(start)
        self.commands, self.replies = context.SimpleQueue(), context.SimpleQueue()
        self.process = context.Process(target=run, args=(self.commands, self.replies), daemon=True)
        self.process.start()

    def send(self, code, *objects):
        self.commands.put((code, objects))

    def answer(self):
        return self.replies.get()

    def ask(self, code, *objects):
        self.send(code, *objects)
        return self.answer()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def end(self):
        self.commands.put(None)
        self.process.join(30)
        assert self.process.exitcode == 0, self.process.exitcode


def send_and_end(queue, tensor, go, received, errors):
    """A sender: sends, waits until it was received, and ends."""
    import stillmap.torch

    sys.stderr = open(errors, "w")
    go.wait()
    stillmap.torch.use(exportable=True)
    queue.put(filled(*tensor))
    received.wait()


class OnDevice(torch.utils.data.Dataset):
    """Whose items are made on the device, in the worker."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        import stillmap.torch

        stillmap.torch.use(exportable=True)
        return filled(3000 + i, i)
