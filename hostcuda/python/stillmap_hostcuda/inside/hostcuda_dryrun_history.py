"""What PyTorch's memory snapshot tells of a run: memory over time, the heap at its peak, and which lines of the program
allocated the memory that was in use then.

Sizes of blocks are rounded up to 512 bytes, as PyTorch rounds them.
"""
import bisect
import itertools
import os

UNIT = 512
POINTS = 600  # of the curve
PLACES = 40  # lines of the program that are named
NEARLY = 1.01  # two heaps that differ by less are not both shown
MOST_EVENTS = 1_000_000  # that PyTorch keeps
NO_PLACE = "no Python line: the backward pass, or a thread of PyTorch"
BEFORE = "before the recorded events"


def rounded(size):
    return -(-size // UNIT) * UNIT


class Ranges:
    """Disjoint ranges of addresses, each with an owner: its stream, and whether it is mapped, that is, part of an
    expandable segment.
    """

    def __init__(self):
        self.begins, self.ends, self.owners = [], [], []
        self.bytes = 0

    def add(self, begin, size, owner):
        at = bisect.bisect_left(self.begins, begin)
        self.begins.insert(at, begin)
        self.ends.insert(at, begin + size)
        self.owners.insert(at, owner)
        self.bytes += size

    def remove(self, begin, size):
        """Takes [begin, begin + size) out, of as many ranges as it has parts of."""
        end, kept = begin + size, []
        first = max(bisect.bisect_right(self.begins, begin) - 1, 0)
        last = first
        while last < len(self.begins) and self.begins[last] < end:
            low, high, owner = self.begins[last], self.ends[last], self.owners[last]
            self.bytes -= max(min(high, end) - max(low, begin), 0)
            kept += [part for part in ((low, min(high, begin), owner), (max(low, end), high, owner))
                     if part[0] < part[1]]
            last += 1
        for values, i in ((self.begins, 0), (self.ends, 1), (self.owners, 2)):
            values[first:last] = [part[i] for part in kept]

    def segments(self):
        """(stream, begin, end) in the order of streams and addresses. An expandable segment is mapped in parts."""
        out, last = [], None
        for begin, end, owner in sorted(zip(self.begins, self.ends, self.owners), key=lambda one: (one[2][0], one[0])):
            if owner[1] and owner == last and out[-1][2] == begin:
                out[-1] = (owner[0], out[-1][1], end)
            else:
                out.append((owner[0], begin, end))
            last = owner
        return out


def place(frames, known):
    """The innermost line that is neither PyTorch's nor this module's. `known` remembers the places of lists of frames,
    which PyTorch's snapshot shares between events."""
    if id(frames) not in known:
        found = NO_PLACE
        for frame in frames:
            name = frame["filename"]
            if name and "/torch/" not in name and "hostcuda_dryrun" not in name and not name.startswith("<"):
                found = "%s:%d %s" % (shortened(name), frame["line"], frame["name"])
                break
        known[id(frames)] = found
    return known[id(frames)]


def shortened(path):
    """Relative to its package or to the current directory, or the last three parts."""
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in path:
            return path.split(mark, 1)[1]
    here = os.path.join(os.getcwd(), "")
    if path.startswith(here):
        return path[len(here):]
    return "/".join(path.split("/")[-3:]).lstrip("/")


def is_map(event):
    return event["action"] in ("segment_alloc", "segment_map")


def owner(event):
    return event["stream"], event["action"] in ("segment_map", "segment_unmap")


def is_unmap(event):
    return event["action"] in ("segment_free", "segment_unmap")


def at_first(segments, events):
    """The ranges and the blocks that were there before the first event: those of the end, with the events undone."""
    ranges, blocks = Ranges(), {}
    for segment in segments:
        ranges.add(segment["address"], segment["total_size"], (segment["stream"], segment.get("is_expandable", False)))
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                size = rounded(block.get("requested_size", block["size"]))
                blocks[block["address"]] = [size, BEFORE, block["state"] != "active_allocated"]
    for event in reversed(events):
        address, size = event["addr"], event["size"]
        if is_map(event):
            ranges.remove(address, size)
        elif is_unmap(event):
            ranges.add(address, size, owner(event))
        elif event["action"] == "alloc":
            blocks.pop(address, None)
        elif event["action"] == "free_completed":
            blocks[address] = [rounded(size), BEFORE, True]
        elif event["action"] == "free_requested" and address in blocks:
            blocks[address][2] = False
    return ranges, blocks


class Heap:
    """One device's memory, moved from event to event."""

    def __init__(self, segments, events):
        self.ranges, self.blocks = at_first(segments, events)  # address -> [bytes, place, whether it is freed]
        self.live = sum(size for size, _, freed in self.blocks.values() if not freed)
        self.known = {}

    def apply(self, event):
        address, size = event["addr"], event["size"]
        if is_map(event):
            self.ranges.add(address, size, owner(event))
        elif is_unmap(event):
            self.ranges.remove(address, size)
        elif event["action"] == "alloc":
            self.blocks[address] = [rounded(size), place(event.get("frames") or (), self.known), False]
            self.live += rounded(size)
        elif event["action"] == "free_requested" and address in self.blocks:
            self.blocks[address][2] = True
            self.live -= self.blocks[address][0]
        elif event["action"] == "free_completed":
            self.blocks.pop(address, None)

    def picture(self):
        """The segments with their blocks, as numbers: [stream, bytes, [[offset, bytes, place or -1], ...]]; -1 is a
        block that other streams may still use. With the names of the places, largest first."""
        sizes = {}
        for size, where, freed in self.blocks.values():
            if not freed:
                count, total = sizes.get(where, (0, 0))
                sizes[where] = (count + 1, total + size)
        places = sorted(sizes, key=lambda where: -sizes[where][1])
        number = {where: min(i, PLACES) for i, where in enumerate(places)}
        segments, addresses, streams = [], sorted(self.blocks), {}
        for stream, begin, end in self.ranges.segments():
            inside = []
            for address in addresses[bisect.bisect_left(addresses, begin):bisect.bisect_left(addresses, end)]:
                size, where, freed = self.blocks[address]
                inside.append([address - begin, min(size, end - address), -1 if freed else number[where]])
            segments.append([streams.setdefault(stream, len(streams)), end - begin, inside])
        named = [[where, *reversed(sizes[where])] for where in places[:PLACES]]
        rest = [sizes[where] for where in places[PLACES:]]
        if rest:
            named.append(["%d other lines" % len(rest), sum(total for _, total in rest), sum(n for n, _ in rest)])
        return segments, named


def curve(points):
    """At most POINTS of (x, live, held) as [x, least live, most live, most held]."""
    if not points:
        return []
    step = -(-len(points) // POINTS)
    out = []
    for i in range(0, len(points), step):
        part = points[i:i + step]
        out.append([part[-1][0], min(live for _, live, _ in part), max(live for _, live, _ in part),
                    max(held for _, _, held in part)])
    return out


def moment(what, segments, events, index):
    """The heap after the event of that number."""
    heap = Heap(segments, events)
    for event in itertools.islice(events, index + 1):
        heap.apply(event)
    shown, places = heap.picture()
    return {"what": what, "event": max(index, 0), "live": heap.live, "held": heap.ranges.bytes, "segments": shown,
            "places": places}


def history(segments, events):
    """Of one device, from its part of torch.cuda.memory._snapshot(): the curve, the heap with the most memory in
    tensors and, if the allocator held less then than later, after the request for which it grew to the most.
    """
    heap, points = Heap(segments, events), []
    for i, event in enumerate(events):
        heap.apply(event)
        points.append((i, heap.live, heap.ranges.bytes))
    peak = max(range(len(points)), key=lambda i: points[i][1:], default=-1)
    moments = [moment("tensors", segments, events, peak)]
    grown = max(range(len(points)), key=lambda i: points[i][2], default=-1)  # the first of the highest
    if points and NEARLY * moments[0]["held"] < points[grown][2]:
        while grown + 1 < len(events) and events[grown]["action"] != "alloc":
            grown += 1
        moments.append(moment("growth", segments, events, grown))
    return {"curve": curve(points), "moments": moments, "events": len(events), "lost": len(events) >= MOST_EVENTS}


def of_snapshot(snapshot):
    """Of the device with the most memory, or None."""
    found = {}
    for device, events in enumerate(snapshot["device_traces"]):
        segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
        if events or segments:
            found[device] = history(segments, events)
    if not found:
        return None
    device = max(found, key=lambda one: found[one]["moments"][-1]["held"])
    return dict(found[device], device=device, devices=len(found))
