"""In a process of a program that runs under `hostcuda dryrun`: waits until it imports torch, and observes. When the
program ends, writes what its process did with the device, and where it read values that no kernel had written.
"""
import atexit
import collections
import ctypes
import json
import os
import sys
import threading
import time
import traceback

import hostcuda_after_import

REPORT = os.environ["HOSTCUDA_DRYRUN_REPORT"]  # a folder; each process writes a file
STILLMAP = os.environ.get("HOSTCUDA_DRYRUN_STILLMAP")  # libstillmap_torch.so, if it is to be the allocator
# A loop until a condition in the device's memory is true would never end: no kernel makes it true. At one place it
# is therefore false this many times and then true once. 0: never.
LOOP_LIMIT = int(os.environ.get("HOSTCUDA_DRYRUN_LOOP_LIMIT", "0"))
PICTURES = "HOSTCUDA_DRYRUN_PICTURES" in os.environ  # whether to write what pictures are made of
SAMPLES = 20_000  # of an allocator without a history, at most twice as many; then every second one stays
PAUSE = 0.002  # seconds between them
READS = ("item", "tolist", "__int__", "__float__", "nonzero")

ended = collections.Counter()  # place in the program -> conditions that were made true
turns = collections.Counter()  # place in the program -> conditions that were false since
reads = collections.Counter()  # place in the program -> reads of device values
samples = []  # (time, bytes in tensors, bytes held by the allocator)
peaks = collections.defaultdict(lambda: [0, 0])  # device -> bytes in tensors, and held by the allocator


class Counters(ctypes.Structure):
    """hostcuda_counters of hostcuda.h."""
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "calls", "bytes_htod", "bytes_dtoh", "bytes_dtod", "bytes_set", "physical_bytes", "physical_peak",
        "live_handles", "live_mappings", "live_reservations", "live_streams", "live_events", "live_contexts",
        "violations", "first_touch_ns", "live_host_ranges", "skipped_launches")]


def place_of_caller():
    """The innermost line that is not torch's or this module's."""
    for frame in reversed(traceback.extract_stack()[:-2]):
        if "/torch/" not in frame.filename and frame.filename != __file__:
            return "%s:%d" % (os.path.relpath(frame.filename), frame.lineno)
    return "?"


def observe_reads(torch):
    def wrapped(original):
        def read(tensor, *arguments, **options):
            if tensor.is_cuda:
                reads[place_of_caller()] += 1
            return original(tensor, *arguments, **options)
        return read
    for name in READS:
        setattr(torch.Tensor, name, wrapped(getattr(torch.Tensor, name)))
    torch.Tensor.__bool__ = condition(torch.Tensor.__bool__)


def condition(original):
    def truth(tensor):
        value = original(tensor)
        if not tensor.is_cuda:
            return value
        place = place_of_caller()
        reads[place] += 1
        turns[place] = 0 if value else turns[place] + 1
        if not LOOP_LIMIT or turns[place] <= LOOP_LIMIT:
            return value
        turns[place] = 0
        ended[place] += 1
        return True
    return truth


def stillmap_stats(device):
    text = ctypes.create_string_buffer(8192)
    if ctypes.CDLL(STILLMAP).stillmap_stats(device, text, len(text)) == 0:
        return {}
    stats = json.loads(text.value)
    return {"allocated_bytes.all.current": stats["live_bytes"], "allocated_bytes.all.peak": stats["live_peak_bytes"],
            "reserved_bytes.all.current": stats["committed_bytes"],
            "reserved_bytes.all.peak": stats["committed_peak_bytes"]}


def note_peaks(torch):
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory.memory_stats(device)
        for i, name in enumerate(("allocated", "reserved")):
            peaks[device][i] = max(peaks[device][i], stats.get("%s_bytes.all.peak" % name, 0))


def observe_resets(torch):
    """A program that resets its peaks would hide the earlier ones."""
    reset = torch.cuda.memory.reset_peak_memory_stats

    def noted(device=None):
        if torch.cuda.is_initialized():
            note_peaks(torch)
        # PyTorch has no statistics of its own for Stillmap, whose peaks stay.
        return None if STILLMAP else reset(device)
    torch.cuda.memory.reset_peak_memory_stats = torch.cuda.reset_peak_memory_stats = noted


def use_stillmap(torch):
    heap = torch.cuda.memory.CUDAPluggableAllocator(STILLMAP, "stillmap_malloc", "stillmap_free")
    torch.cuda.memory.change_current_allocator(heap)
    library = ctypes.CDLL(STILLMAP)
    plug = heap.allocator()
    library.stillmap_hooks.restype = ctypes.c_char_p
    for line in library.stillmap_hooks().decode().splitlines():
        setter, name = line.split()
        if hasattr(plug, setter):
            getattr(plug, setter)(ctypes.cast(getattr(library, name), ctypes.c_void_p).value)

    # PyTorch refuses statistics of any pluggable allocator, and many programs print them.
    def memory_stats(device=None):
        return stillmap_stats(torch.cuda.current_device() if device is None else torch.cuda._utils._get_device_index(device))
    torch.cuda.memory.memory_stats = torch.cuda.memory_stats = memory_stats


def sample(torch):
    """Notes memory over time, of an allocator that keeps no history. Runs until the process ends."""
    pause = PAUSE
    while not torch.cuda.is_initialized():
        time.sleep(PAUSE)
    while True:
        stats = [torch.cuda.memory.memory_stats(device) for device in range(torch.cuda.device_count())]
        samples.append((time.monotonic(), *(sum(one.get("%s_bytes.all.current" % name, 0) for one in stats)
                                            for name in ("allocated", "reserved"))))
        if len(samples) >= 2 * SAMPLES:
            del samples[::2]
            pause *= 2
        time.sleep(pause)


def has_history(torch):
    return not STILLMAP and torch.cuda.memory.get_allocator_backend() == "native"


def record(torch):
    """Records memory over time from the moment that PyTorch initialises the device."""
    if has_history(torch):
        import hostcuda_dryrun_history as history
        torch.cuda._lazy_call(lambda: torch.cuda.memory._record_memory_history(
            context="alloc", stacks="python", max_entries=history.MOST_EVENTS))
    else:
        threading.Thread(target=sample, args=(torch,), daemon=True).start()


def recorded(torch):
    import hostcuda_dryrun_history as history
    if has_history(torch):
        return history.of_snapshot(torch.cuda.memory._snapshot())
    taken = list(samples)
    return {"curve": history.curve([(at - taken[0][0], live, held) for at, live, held in taken]), "sampled": PAUSE}


def trust_other_processes():
    """DistributedDataParallel compares its parameters with those of other processes, which no collective has moved."""
    distributed = sys.modules.get("torch.distributed")
    if hasattr(distributed, "_verify_params_across_processes"):
        distributed._verify_params_across_processes = lambda *arguments, **options: None


def after_import(torch):
    trust_other_processes()
    if PICTURES:
        record(torch)
    if STILLMAP:
        use_stillmap(torch)
    observe_reads(torch)
    observe_resets(torch)


def write_report(process):
    torch = sys.modules.get("torch")
    if os.getpid() != process or torch is None or not torch.cuda.is_initialized():
        return
    counters = Counters()
    ctypes.CDLL("libcuda.so.1").hostcuda_get_counters(ctypes.byref(counters))
    note_peaks(torch)
    live, held = (sum(peak[i] for peak in peaks.values()) for i in (0, 1))
    retries = sum(torch.cuda.memory.memory_stats(device).get("num_alloc_retries", 0) for device in peaks)
    report = {"live": live, "held": held, "retries": retries, "device": counters.physical_peak,
              "skipped": counters.skipped_launches, "violations": counters.violations, "read": counters.bytes_dtoh, "reads": reads.most_common(),
              "ended": ended.most_common()}
    if PICTURES:
        report["history"] = recorded(torch)
    with open(os.path.join(REPORT, "%d.json" % process), "w", encoding="utf-8") as file:
        json.dump(report, file)


def start():
    hostcuda_after_import.after_import("torch", after_import)
    atexit.register(write_report, os.getpid())
