"""As much of PyTorch as `hostcuda dryrun` observes, over the driver: for machines without PyTorch."""
import ctypes
import sys
import types

_driver = ctypes.CDLL("libcuda.so.1")
_events, _recording = [], []
_stats = {"allocated_bytes.all.peak": 0, "reserved_bytes.all.peak": 0, "num_alloc_retries": 0}


def _check(status):
    if status != 0:
        raise RuntimeError("CUDA error %d" % status)


class Tensor:
    is_cuda = True

    def __init__(self, count):
        context, self.at = ctypes.c_void_p(), ctypes.c_uint64()
        _check(_driver.cuInit(0))
        _check(_driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        _check(_driver.cuCtxSetCurrent(context))
        _check(_driver.cuMemAlloc_v2(ctypes.byref(self.at), ctypes.c_size_t(count)))
        for name in ("allocated_bytes.all.peak", "reserved_bytes.all.peak"):
            _stats[name] = max(_stats[name], count)
        frame = sys._getframe(1)
        place = {"filename": frame.f_code.co_filename, "line": frame.f_lineno, "name": frame.f_code.co_name}
        for action in ("segment_alloc", "alloc") if _recording else ():
            _events.append({"action": action, "addr": self.at.value, "size": count, "stream": 0, "frames": [place]})

    def _word(self):
        word = ctypes.c_uint32()
        _check(_driver.cuMemcpyDtoH_v2(ctypes.byref(word), self.at, ctypes.c_size_t(4)))
        return word.value

    item = tolist = nonzero = __int__ = __float__ = _word

    def __bool__(self):
        return self._word() != 0


def _reset(device=None):
    for name in _stats:
        _stats[name] = 0


def _snapshot():
    blocks = [(one["addr"], one["size"]) for one in _events if one["action"] == "alloc"]
    return {"device_traces": [_events], "segments": [
        {"device": 0, "address": at, "total_size": size, "stream": 0, "is_expandable": False,
         "blocks": [{"address": at, "size": size, "requested_size": size, "state": "active_allocated"}]}
        for at, size in blocks]}


memory = types.SimpleNamespace(memory_stats=lambda device=None: dict(_stats), reset_peak_memory_stats=_reset,
                               get_allocator_backend=lambda: "native", _snapshot=_snapshot,
                               _record_memory_history=lambda **_: _recording.append(True))
cuda = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1, current_device=lambda: 0,
                             _lazy_call=lambda call: call(), memory=memory, reset_peak_memory_stats=_reset)
