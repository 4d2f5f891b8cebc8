"""Growth with NVIDIA's cuda.core: VirtualMemoryResource.modify_allocation.

An operation that it refuses is a result, not a failure of this check: the row says where it stopped."""

import time

WEIGHT = 3
COLUMNS = (
    "growth", "version", "reached_bytes", "moved", "total_seconds", "last_seconds",
    "peak_of_device_bytes", "stopped",
)  # fmt: skip
MIB = 1 << 20
# Sizes one after another: doubling as programs do that cannot grow, by equal pieces as those do
# that can; and, since what has grown once may not grow again, from each size to twice as much.
ONCE = "once"
FULL = {
    "doubling": [2 * MIB << i for i in range(15)],
    "by 64 MiB": [64 * MIB * i for i in range(1, 65)],
    ONCE: [2 * MIB << i for i in range(12)],
}
TINY = {
    "doubling": [2 * MIB << i for i in range(6)],
    "by 2 MiB": [2 * MIB * i for i in range(1, 17)],
    ONCE: [2 * MIB << i for i in range(4)],
}


def measure(lab):
    if lab.options.device != "cuda":
        lab.skip("cuda.core is about GPUs")
        return
    ways = TINY if lab.tiny else FULL
    for way, sizes in ways.items():
        labels = {"growth": way, "allocator": "cuda.core"}
        job = {"sizes": sizes, "once": way == ONCE}
        said = lab.answer(labels, "default", job, lab.share.for_one_of(len(ways)))
        if said is None:
            continue
        if "skipped" in said:
            lab.skip(f"{way}: {said['skipped']}")
        else:
            lab.result.add({**labels, **said})


def resource_of():
    """(the module that has it, or None; why not). Its place has changed with the versions."""
    try:
        import cuda.core
    except ImportError as error:
        return None, f"cuda.core is not here: {error}"
    if hasattr(cuda.core, "VirtualMemoryResource"):
        return cuda.core, None
    try:
        import cuda.core.experimental as experimental
    except ImportError:
        experimental = None
    if hasattr(experimental, "VirtualMemoryResource"):
        return experimental, None
    return None, f"cuda.core {version()} has no VirtualMemoryResource"


def version():
    import cuda.core

    return getattr(cuda.core, "__version__", None)


def work(bench):
    core, reason = resource_of()
    if core is None:
        return {"skipped": reason}
    if not hasattr(core.VirtualMemoryResource, "modify_allocation"):
        return {"skipped": f"cuda.core {version()} has no modify_allocation"}
    from cuda.bindings import driver

    device = core.Device(0)
    device.set_current()
    memory = core.VirtualMemoryResource(device.device_id)
    grow = grown_once if bench.job["once"] else grown
    return {"version": version(), **grow(memory, driver, bench.job["sizes"])}


def free_bytes(driver):
    return driver.cuMemGetInfo()[1]


def grown(memory, driver, sizes):
    before = least = free_bytes(driver)
    buffer, place, moved, steps, stopped = None, None, 0, [], None
    for size in sizes:
        begin = time.perf_counter()
        try:
            if buffer is None:
                buffer = memory.allocate(size)
            else:
                buffer = memory.modify_allocation(buffer, size)
        except Exception as error:  # its own kinds, which have changed with the versions
            stopped = f"at {size} bytes: {type(error).__name__}: {error}".splitlines()[0]
            break
        steps.append({"bytes": size, "seconds": time.perf_counter() - begin})
        moved += place not in (None, int(buffer.handle))
        place = int(buffer.handle)
        least = min(least, free_bytes(driver))
    return {
        "reached_bytes": steps[-1]["bytes"] if steps else 0,
        "moved": moved,
        "total_seconds": sum(step["seconds"] for step in steps),
        "last_seconds": steps[-1]["seconds"] if steps else None,
        "peak_of_device_bytes": before - least,
        "stopped": stopped,
        "sizes": steps,
    }


def grown_once(memory, driver, sizes):
    """As grown(), but each size is a buffer of its own, which grows to twice as much."""
    all_of = [grown(memory, driver, [size, 2 * size]) for size in sizes]
    steps = [of["sizes"][-1] for of in all_of if not of["stopped"]]
    return {
        "reached_bytes": steps[-1]["bytes"] if steps else 0,
        "moved": sum(of["moved"] for of in all_of),
        "total_seconds": sum(step["seconds"] for step in steps),
        "last_seconds": steps[-1]["seconds"] if steps else None,
        "peak_of_device_bytes": max(of["peak_of_device_bytes"] for of in all_of),
        "stopped": next((of["stopped"] for of in all_of if of["stopped"]), None),
        "sizes": steps,
    }
