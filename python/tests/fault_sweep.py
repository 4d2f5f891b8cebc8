"""Runs every operation of every Python object with each of its driver calls failing once.

Whatever call fails, the operation either raises and leaves everything as it was, and succeeds when it is
repeated; or it does without the call and ends as it does otherwise. Nothing leaks. fault_operations.py has
the operations; faults_test.py runs this in a process of its own, on a hostcuda that works in a fixed order.
"""

import collections
import ctypes
import gc
import hashlib
import os
import tempfile
import traceback

import stillmap
from support import device, driver

OUT_OF_MEMORY, UNKNOWN = 2, 999


class Hostcuda:
    """The counters and the fault injection of hostcuda.h."""

    COUNTERS = ("calls", "bytes_htod", "bytes_dtoh", "bytes_dtod", "bytes_set", "physical_bytes", "physical_peak",
                "live_handles", "live_mappings", "live_reservations", "live_streams", "live_events",
                "live_contexts", "violations", "first_touch_ns", "live_host_ranges", "skipped_launches")
    EACH = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p)

    def __init__(self):
        self.library = driver().library

    def counters(self):
        out = (ctypes.c_uint64 * len(self.COUNTERS))()
        self.library.hostcuda_get_counters(out)
        return dict(zip(self.COUNTERS, out))

    def calls(self):
        """How often each function was called since the process began."""
        found = collections.Counter()

        def note(name, calls, _):
            found[name.decode()] = calls
        self.library.hostcuda_each_call(self.EACH(note), None)
        return found

    def fail(self, name, nth, code):
        self.library.hostcuda_fail(name.encode(), ctypes.c_uint64(nth), code)

    def stop_failing(self, name):
        """Returns whether the rule has fired."""
        fired = ctypes.c_uint64()
        self.library.hostcuda_fail(name.encode(), ctypes.c_uint64(0), 0)
        self.library.hostcuda_faults_fired(ctypes.byref(fired))
        return fired.value != 0


class Bench:
    """What an operation works on: its setting puts objects here, and everything that is here is observed."""

    def __init__(self, folder, streams):
        self.folder, self.streams = folder, streams
        self.objects, self.homes, self.blocks, self.written, self.results = {}, {}, {}, set(), []

    def put(self, name, thing):
        self.objects[name] = thing
        if hasattr(thing, "nbytes"):
            self.homes[name] = thing.address
        return thing

    def __getattr__(self, name):
        try:
            return self.objects[name]
        except KeyError:
            raise AttributeError(name) from None

    def path(self, name):
        return os.path.join(self.folder, name)

    def observe(self):
        driver().enter()
        driver().call("cuCtxSynchronize")
        stillmap.trim()  # what waited for queued work is unmapped
        self.write_new_blocks()
        seen = {name: self.observe_object(name, thing) for name, thing in sorted(self.objects.items())}
        away = {tag["tag"]: tag["nbytes"] for tag in stillmap.suspended()}
        return {**seen, "suspended": away, "results": list(self.results), "files": sorted(os.listdir(self.folder)),
                **self.observe_tags()}

    def observe_tags(self):
        """Mapped bytes and ranges by tag. An allocator may keep pages and addresses that it did not need."""
        if any(isinstance(thing, stillmap.CachingAllocator) for thing in self.objects.values()):
            return {}
        return {"tags": {tag: [figures[key] for key in ("mapped_bytes", "suspended_bytes", "blocks")]
                         for tag, figures in stillmap.stats()["tags"].items()}}

    def write_new_blocks(self):
        """Here, because an operation that is swept makes no driver calls of the test."""
        for block in self.blocks.keys() - self.written:
            driver().write(self.blocks[block][0], block.ljust(16).encode())
            self.written.add(block)

    def observe_object(self, name, thing):
        if isinstance(thing, stillmap.CachingAllocator):
            if thing.closed:
                return "closed"
            total = thing.stats()["total"]
            blocks = {block: (self.contents_of(at), thing.usable_size(at)) for block, (at, _) in self.blocks.items()}
            return {**{key: total[key] for key in ("live", "requested", "blocks", "pending_free")},
                    "contents": blocks, "limit": thing.limit}
        if isinstance(thing, stillmap.Server):
            return "closed" if thing.closed else thing.address
        if isinstance(thing, stillmap.Restored):
            return "closed" if thing.closed else [block["nbytes"] for block in thing.blocks]
        if isinstance(thing, stillmap.PublicationClaim):
            return "claim"  # it ends also on failure
        if isinstance(thing, stillmap.PublicationHolder):
            return [[each[key] for key in ("name", "generation", "newest", "nbytes")] for each in thing.publications()]
        if isinstance(thing, stillmap.AttachedMemory):
            return self.observe_attached(thing)
        try:
            seen = {"nbytes": thing.nbytes, "capacity": thing.capacity,
                    "moved": thing.address != self.homes[name]}
        except stillmap.InvalidArgumentError:
            return "closed"
        if isinstance(thing, stillmap.DeviceVector):
            if not device()["vmm"]:  # a copy that grows stays where it is, and as large
                del seen["capacity"], seen["moved"]
            return {**seen, "size": len(thing), "stream": thing.stream, "elements": digest_of(thing.to_host)}
        return {**seen, "reserved": thing.reserved, "mapped": thing.stats()["mapped_bytes"],
                "contents": digest_of(thing.copy_to_host)}

    def observe_attached(self, thing):
        try:
            ranges = [(each.address, each.nbytes) for each in thing.ranges()]
        except stillmap.InvalidArgumentError:
            return "closed"
        return [thing.shared_bytes, thing.private_bytes,
                *(digest_of(lambda at=at, nbytes=nbytes: driver().read(at, nbytes)) for at, nbytes in ranges)]

    def contents_of(self, at):
        try:
            return driver().read(at, 16)
        except RuntimeError:
            return "suspended"


def digest_of(read):
    try:
        return hashlib.md5(read()).hexdigest()
    except stillmap.Error as error:
        return type(error).__name__


class Sweep:
    """`stride`: every so many of the calls are failed."""

    def __init__(self, operations, stride):
        self.operations, self.stride, self.hostcuda = operations, stride, Hostcuda()
        self.points, self.survived = collections.Counter(), collections.Counter()
        self.problems = []
        self.streams = [driver().stream(), driver().stream()]

    def run(self):
        for each in self.operations:
            if each.vmm and not device()["vmm"]:
                continue
            try:
                self.sweep(each)
            except Exception:
                self.problem(each, "the test itself failed: " + traceback.format_exc())
        return self

    def problem(self, operation, text):
        self.problems.append("%s: %s" % (operation.name, text))

    def bench(self, operation):
        self.folder = tempfile.TemporaryDirectory()
        made = Bench(self.folder.name, self.streams)
        operation.set(made)
        return made

    def drop(self, bench):
        """Releases everything, whatever state it is in."""
        for tag in stillmap.suspended():
            stillmap.forget(tag["tag"])
        for thing in bench.objects.values():
            if hasattr(thing, "close"):
                thing.close()
        bench.objects.clear()
        bench.results.clear()
        self.folder.cleanup()
        gc.collect()
        for _ in range(2):
            stillmap.trim()
        driver().enter()
        held = self.hostcuda.counters()
        return {key: held[key] for key in ("live_handles", "live_mappings", "live_reservations", "live_streams",
                                           "physical_bytes", "violations")}

    def sweep(self, operation):
        bench = self.bench(operation)
        operation.run(bench)  # what is made once and kept is there afterwards
        baseline = self.drop(bench)
        bench = self.bench(operation)
        before = bench.observe()
        start = self.hostcuda.calls()
        operation.run(bench)
        calls = self.hostcuda.calls() - start
        after = bench.observe()
        if (held := self.drop(bench)) != baseline:
            self.problem(operation, "left behind without any failure: %s, not %s" % (held, baseline))
        points = [(name, nth) for name, count in sorted(calls.items()) for nth in range(1, count + 1)]
        for point in range(0, len(points), self.stride):
            code = (OUT_OF_MEMORY, UNKNOWN)[point // self.stride % 2]
            baseline = self.fail_once(operation, (*points[point], code), before, after, baseline)

    def fail_once(self, operation, call, before, after, baseline):
        """Returns what is held in the end. More than before is a leak, unless the sink was told of it: what
        was to be given back could not be."""
        name, nth, code = call
        where = "%s #%d failing with %d: " % call
        bench = self.bench(operation)
        told = stillmap.stats()["background_errors"]
        self.hostcuda.stop_failing(name)
        self.hostcuda.fail(name, nth, code)
        try:
            operation.run(bench)
            raised = None
        except (stillmap.Error, OSError) as error:
            raised = error
        fired = self.hostcuda.stop_failing(name)
        if not fired:  # the call was not made this time
            return self.drop(bench)
        self.points[operation.call] += 1
        if raised is None:
            self.survived[operation.call] += 1
        else:
            self.compare(operation, where + "after %s" % raised, bench.observe(), before)
            try:
                operation.run(bench)
            except (stillmap.Error, OSError) as error:
                self.problem(operation, where + "tried again: %s" % error)
        told = stillmap.stats()["background_errors"] - told
        # What the sink was told of is left behind, which the tags show.
        self.compare(operation, where + "in the end", bench.observe(), after, but="tags" if told else None)
        held = self.drop(bench)
        if held != baseline and not told:
            self.problem(operation, where + "left behind %s, not %s" % (held, baseline))
        return held

    def compare(self, operation, when, found, expected, but=None):
        differences = ["%s is %r, not %r" % (key, found[key], expected.get(key))
                       for key in sorted(found) if found[key] != expected.get(key) and key != but]
        if differences:
            self.problem(operation, when + ": " + "; ".join(differences))

    def table(self):
        lines = ["%-46s %7s %9s" % ("call", "points", "survived")]
        for call, points in self.points.items():
            lines.append("%-46s %7d %9d" % (call, points, self.survived[call]))
        return "\n".join(lines)


def main():
    import fault_operations
    # What the driver can do and how a call is undone differ on the first two only.
    thorough = any(profile in os.environ.get("HOSTCUDA", "") for profile in ("h200", "vgpu-no-vmm"))
    sweep = Sweep(fault_operations.operations(), 1 if thorough else 5).run()
    print(sweep.table())
    for problem in sweep.problems:
        print("PROBLEM", problem)
    print("note: Python fault sweep: %d points of %d calls failed; %s"
          % (sum(sweep.points.values()), len(sweep.points),
             "%d PROBLEMS" % len(sweep.problems) if sweep.problems else "no object changed, nothing leaked"))


if __name__ == "__main__":
    main()
