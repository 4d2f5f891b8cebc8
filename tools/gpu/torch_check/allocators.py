"""The allocators that are compared, and how a process is set up to use each."""

import ctypes
import json

STILLMAP = "stillmap"
# What PYTORCH_CUDA_ALLOC_CONF says; PyTorch reads it while it is loaded.
SETTINGS = {
    "default": None,
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
    STILLMAP: None,
}


def names(device):
    """All of them; the processor's memory has but one."""
    return list(SETTINGS) if device == "cuda" else ["default"]


def environment(allocator, inherited):
    """What a process with that allocator is started with."""
    clean = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "STILLMAP_TORCH_"))
    }
    if SETTINGS[allocator]:
        clean["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[allocator]
    return clean


def connect(torch, library):
    """Makes Stillmap PyTorch's allocator, before CUDA is used: docs/torch_plugin.md. The names of the
    hooks that this PyTorch has."""
    heap = torch.cuda.memory.CUDAPluggableAllocator(library, "stillmap_malloc", "stillmap_free")
    functions, plug, connected = ctypes.CDLL(library), heap.allocator(), []
    functions.stillmap_hooks.restype = ctypes.c_char_p
    for line in functions.stillmap_hooks().decode().splitlines():
        hook, function = line.split()
        if hasattr(plug, hook):
            getattr(plug, hook)(ctypes.cast(getattr(functions, function), ctypes.c_void_p).value)
            connected.append(hook)
    torch.cuda.memory.change_current_allocator(heap)
    return connected


def stillmap_stats(library, device=0):
    """The figures of Stillmap's allocator; empty before the first allocation."""
    ask = ctypes.CDLL(library).stillmap_stats
    ask.restype = ctypes.c_size_t
    ask.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    room = ctypes.create_string_buffer(8192)
    ask(device, room, len(room))
    return json.loads(room.value.decode() or "{}")
