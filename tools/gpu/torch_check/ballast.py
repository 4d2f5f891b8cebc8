"""Occupies GPU memory, so that each allocator has the same limited amount."""

import ctypes


def open_libraries(torch):
    """What cuBLAS takes when it is first used, for both threads of a training step: where no
    memory is left it says so in words of its own."""
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(64, 64, device="cuda", dtype=dtype, requires_grad=True)
        (x @ x).sum().backward()


def leave(torch, bytes_):
    """Holds everything but `bytes_` until the process ends. By the driver itself: an allocator's
    own limit would count what each of them counts. Returns how much it took."""
    torch.cuda.synchronize()
    take = torch.cuda.mem_get_info()[0] - bytes_
    if take <= 0:
        return 0
    address = ctypes.c_uint64()
    allocate = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2
    allocate.argtypes = (ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t)
    status = allocate(ctypes.byref(address), take)
    if status != 0:
        raise RuntimeError(f"the driver did not give {take} bytes of ballast: CUresult {status}")
    return take
