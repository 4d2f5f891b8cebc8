#!/usr/bin/env python3
"""Replays the allocations and frees of kv_bench --operations=FILE through kvcached itself, on hostcuda.

It measures what `kv_bench` measures of its policies, and prints it as JSON: bytes of the device that are held, over
bytes that are wanted; driver calls, by function, with their time by the same cost table; CPU time of alloc() and
free(). docs/results/kv_arena.md has the commands, which install PyTorch and kvcached and run this under hostcuda.

The steps follow each other without pause, while a server's last 20 ms. kvcached maps pages ahead on a thread, which
has all the time it wants between two steps here. A driver call that it makes while alloc() or free() runs counts as
theirs.
"""
import argparse
import collections
import ctypes
import json
import logging
import os
import statistics
import sys
import tempfile
import time

MOST_WAIT_S = 1.0  # for kvcached's thread; it is not waited for when the device has no page for it


class Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "calls bytes_htod bytes_dtoh bytes_dtod bytes_set physical_bytes physical_peak live_handles live_mappings "
        "live_reservations live_streams live_events live_contexts violations first_touch_ns live_host_ranges "
        "skipped_launches").split()]


class Hostcuda:
    def __init__(self, memory, costs):
        self.library = ctypes.CDLL("libcuda.so.1")
        if not hasattr(self.library, "hostcuda_reset"):
            sys.exit("kvcached_itself.py: libcuda.so.1 is not hostcuda's; no GPU is measured")
        self.counters = Counters()
        with tempfile.NamedTemporaryFile("w", suffix=".costs") as table:
            for name, (fixed, per_mib) in costs.items():
                table.write("%s %d %d\n" % (name, fixed, per_mib))
            table.flush()
            config = "unbacked,kernels=skip,costs=%s" % table.name + (",memory=" + memory if memory else "")
            if self.library.hostcuda_reset(config.encode()) != 0:
                sys.exit("kvcached_itself.py: hostcuda does not know the machine '%s'" % config)

    def read(self):
        self.library.hostcuda_get_counters(ctypes.byref(self.counters))
        return self.counters

    def held(self):
        return self.read().physical_bytes

    def modelled(self):
        """Driver calls and their nanoseconds by the cost table."""
        ns = ctypes.c_uint64()
        self.library.hostcuda_modelled_ns(ctypes.byref(ns))
        return self.read().calls, ns.value

    def by_name(self):
        out = collections.Counter()
        callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p)
        self.library.hostcuda_each_call(callback(lambda name, calls, _: out.update({name.decode(): calls})), None)
        return out


class Meter:
    """Calls, modelled time and CPU time of one kind of operation."""

    def __init__(self, hostcuda):
        self.hostcuda = hostcuda
        self.calls = self.ns = 0
        self.cpu_us = []

    def run(self, operation, *arguments):
        calls, ns = self.hostcuda.modelled()
        began = time.thread_time_ns()
        result = operation(*arguments)
        self.cpu_us.append((time.thread_time_ns() - began) / 1e3)
        calls_after, ns_after = self.hostcuda.modelled()
        self.calls += calls_after - calls
        self.ns += ns_after - ns
        return result

    def summary(self):
        if not self.cpu_us:
            return {}
        ordered = sorted(self.cpu_us)
        return {"operations": len(ordered), "calls": self.calls, "ms": round(self.ns / 1e6),
                "cpu_us_p50": round(statistics.median(ordered), 1), "cpu_us_p99": round(ordered[len(ordered) * 99 // 100], 1),
                "cpu_us_max": round(ordered[-1], 1)}


def wait_for_thread(manager):
    """Waits until kvcached has mapped as many pages ahead as it wants to."""
    from kvcached import utils
    allocator = manager.page_allocator
    until = time.monotonic() + MOST_WAIT_S
    while allocator.get_num_reserved_pages() < min(utils.MIN_RESERVED_PAGES, allocator.get_num_free_pages()):
        if time.monotonic() > until:
            return False
        time.sleep(0.0002)
    return True


def start(head):
    """kvcached with a cache of the trace's shape, as its integration with vLLM makes it."""
    import torch
    from kvcached.integration.vllm import interfaces
    interfaces.init_kvcached(is_worker=True, device="cuda:0")
    elements = head["token_bytes"] // 2
    # Pages more than the cache has: for the null block, and for a step that allocates before it frees.
    page_blocks = (2 << 20) // head["token_bytes"] // head["block_tokens"]
    blocks = head["blocks"] + 2 * page_blocks
    tensors = interfaces.alloc_kv_cache((2, blocks, head["block_tokens"], 1, elements), head["block_tokens"],
                                        torch.bfloat16, "cuda:0", head["layers"])
    manager = interfaces.get_kv_cache_manager(blocks, head["block_tokens"], head["token_bytes"], head["layers"])
    manager._wait_post_init()
    return manager, tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operations", help="the file that kv_bench --operations=FILE wrote")
    parser.add_argument("--memory", help="of the device (hostcuda's); kvcached maps its zero page behind all of it")
    parser.add_argument("--samples", help="a CSV file: step, wanted and held bytes")
    arguments = parser.parse_args()
    lines = open(arguments.operations, encoding="ascii")
    head = json.loads(next(lines))
    if head["tensors"] != 2:
        sys.exit("kvcached_itself.py: %d tensors a layer; kvcached has 2" % head["tensors"])
    hostcuda = Hostcuda(arguments.memory, head["costs"])
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # kvcached prints to standard output

    import torch
    torch.zeros(1, device="cuda:0")
    logging.getLogger("kvcached").setLevel(logging.ERROR)
    before, held_before, named = hostcuda.modelled(), hostcuda.held(), hostcuda.by_name()
    manager, tensors = start(head)
    wait_for_thread(manager)
    at_start = hostcuda.by_name() - named
    started = hostcuda.modelled()
    held_at_start = hostcuda.held() - held_before

    allocs, frees = Meter(hostcuda), Meter(hostcuda)
    blocks = {}  # by the name in the file
    named_blocks = steps = busy = late = 0
    sum_held = sum_wanted = peak_held = peak_wanted = 0
    samples = open(arguments.samples, "w", encoding="ascii") if arguments.samples else None
    began = time.monotonic()
    for line in lines:
        words = line.split()
        wanted = int(words[0])
        calls = allocs.calls + frees.calls
        for word in words[1:]:
            if word[0] == "f":
                ranges = [each.split("-") for each in word[1:].split(",")]
                frees.run(manager.free, [blocks.pop(name) for first, last in ranges
                                         for name in range(int(first), int(last) + 1)])
            else:
                given = allocs.run(manager.alloc, int(word[1:]))
                if given is None:
                    sys.exit("kvcached_itself.py: step %d: kvcached has no %s blocks" % (steps, word[1:]))
                for block in given:
                    blocks[named_blocks] = block
                    named_blocks += 1
        steps += 1
        busy += allocs.calls + frees.calls != calls
        if len(words) > 1 and not wait_for_thread(manager):
            late += 1
        held = hostcuda.held() - held_before
        sum_held, sum_wanted = sum_held + held, sum_wanted + wanted
        peak_held, peak_wanted = max(peak_held, held), max(peak_wanted, wanted)
        if samples and steps % 100 == 0:
            samples.write("%d,%d,%d\n" % (steps, wanted, held))
    if samples:
        samples.close()
    seconds = time.monotonic() - began
    idle = hostcuda.held() - held_before
    manager.trim()
    ended = hostcuda.modelled()
    trimmed = hostcuda.held() - held_before
    background = (ended[0] - started[0] - allocs.calls - frees.calls, ended[1] - started[1] - allocs.ns - frees.ns)
    print(json.dumps({
        "steps": steps, "wall_seconds": round(seconds), "mean_wanted": round(sum_wanted / steps),
        "held_over_wanted": {
            "mean": round(sum_held / max(sum_wanted, 1), 3), "peaks": round(peak_held / max(peak_wanted, 1), 3),
            "idle": round(idle / wanted, 3) if wanted else None},
        "held": {"start": held_at_start, "peak": peak_held, "idle": idle, "trimmed": trimmed},
        "start": {"calls": started[0] - before[0], "ms": round((started[1] - before[1]) / 1e6),
                  "by_name": dict(at_start)},
        "alloc": allocs.summary(), "free": frees.summary(),
        "calls_in_background": {"calls": background[0], "ms": round(background[1] / 1e6)},
        "steps_without_calls_percent": round(100 - 100 * busy / steps, 3), "steps_that_gave_up_waiting": late,
        "by_name": dict((hostcuda.by_name() - named - at_start).most_common(12)),
        "violations": hostcuda.read().violations}, indent=2), file=output)
    output.flush()
    os._exit(0)  # kvcached's threads do not end by themselves


if __name__ == "__main__":
    main()
