"""What a dry run makes of PyTorch's memory snapshot. The snapshots are written by hand; PyTorch is not needed."""
import importlib.util
import os
import pathlib
import random
import unittest

FILE = pathlib.Path(__file__).resolve().parents[1] / "stillmap_hostcuda/inside/hostcuda_dryrun_history.py"
spec = importlib.util.spec_from_file_location("hostcuda_dryrun_history", FILE)
history = importlib.util.module_from_spec(spec)
spec.loader.exec_module(history)

MIB = 1 << 20


def frames(name, line):
    return [{"filename": "/env/lib/python3/site-packages/torch/nn/modules/linear.py", "line": 125, "name": "forward"},
            {"filename": name, "line": line, "name": "step"}]


TRAIN, MODEL = frames("/src/lab/code/train.py", 7), frames("/x/site-packages/models/unet.py", 3)


def event(action, address, size, lines=None, stream=0):
    return {"action": action, "addr": address, "size": size, "stream": stream, "frames": lines or []}


def allocated(address, size, lines=None):
    return event("alloc", address, size, lines)


def freed(address, size):
    return [event("free_requested", address, size), event("free_completed", address, size)]


def segment(address, size, blocks=(), expandable=False, stream=0):
    return {"device": 0, "address": address, "total_size": size, "stream": stream, "is_expandable": expandable,
            "blocks": [{"address": at, "size": bytes_, "requested_size": bytes_, "state": "active_allocated"}
                       for at, bytes_ in blocks]}


class Places(unittest.TestCase):
    def test_the_innermost_line_outside_pytorch(self):
        self.assertEqual(history.place(TRAIN, {}), "lab/code/train.py:7 step")
        self.assertEqual(history.place(MODEL, {}), "models/unet.py:3 step")
        self.assertEqual(history.place(frames(os.path.abspath("code/here.py"), 2), {}), "code/here.py:2 step")
        self.assertEqual(history.place([], {}), history.NO_PLACE)
        self.assertEqual(history.place(TRAIN[:1], {}), history.NO_PLACE)


class Ranges(unittest.TestCase):
    def test_against_single_bytes(self):
        dice = random.Random(5)
        for _ in range(200):
            ranges, taken = history.Ranges(), set()
            for _ in range(30):
                begin, size = dice.randrange(40), dice.randrange(1, 9)
                part = set(range(begin, begin + size))
                if dice.random() < 0.5 and not part & taken:
                    ranges.add(begin, size, (0, True))
                    taken |= part
                else:
                    ranges.remove(begin, size)
                    taken -= part
                self.assertEqual(ranges.bytes, len(taken))
                found = [at for _, low, high in ranges.segments() for at in range(low, high)]
                self.assertEqual(found, sorted(taken))

    def test_only_mapped_parts_of_one_stream_are_one_segment(self):
        ranges = history.Ranges()
        for begin, owner in ((0, (0, False)), (10, (0, False)), (20, (0, True)), (30, (0, True)), (40, (1, True))):
            ranges.add(begin, 10, owner)
        self.assertEqual(ranges.segments(), [(0, 0, 10), (0, 10, 20), (0, 20, 40), (1, 40, 50)])


class Histories(unittest.TestCase):
    EVENTS = [
        event("segment_alloc", 0, 2 * MIB),
        allocated(0, MIB, TRAIN),
        allocated(MIB, 512 * 1024 - 100, MODEL),
        *freed(0, MIB),
        event("segment_alloc", 8 * MIB, 4 * MIB),
        allocated(8 * MIB, 3 * MIB, TRAIN),
        *freed(8 * MIB, 3 * MIB),
    ]
    END = [segment(0, 2 * MIB, [(MIB, 512 * 1024 - 100)]), segment(8 * MIB, 4 * MIB)]

    def test_the_peak_has_its_blocks_holes_and_lines(self):
        found = history.history(self.END, self.EVENTS)
        self.assertEqual(len(found["moments"]), 1)
        peak = found["moments"][0]
        self.assertEqual((peak["live"], peak["held"], peak["event"]), (3 * MIB + 512 * 1024, 6 * MIB, 6))
        self.assertEqual(peak["segments"], [[0, 2 * MIB, [[MIB, 512 * 1024, 1]]], [0, 4 * MIB, [[0, 3 * MIB, 0]]]])
        self.assertEqual(peak["places"], [["lab/code/train.py:7 step", 3 * MIB, 1],
                                          ["models/unet.py:3 step", 512 * 1024, 1]])
        self.assertEqual(found["curve"][-1], [8, 512 * 1024, 512 * 1024, 6 * MIB])

    def test_a_later_growth_is_a_moment_of_its_own(self):
        events = [event("segment_alloc", 0, 8 * MIB), allocated(0, 8 * MIB, MODEL), *freed(0, 8 * MIB),
                  allocated(4 * MIB, MIB, MODEL),
                  event("segment_alloc", 16 * MIB, 6 * MIB), allocated(16 * MIB, 5 * MIB, TRAIN)]
        end = [segment(0, 8 * MIB, [(4 * MIB, MIB)]), segment(16 * MIB, 6 * MIB, [(16 * MIB, 5 * MIB)])]
        moments = history.history(end, events)["moments"]
        self.assertEqual([(one["what"], one["live"], one["held"]) for one in moments],
                         [("tensors", 8 * MIB, 8 * MIB), ("growth", 6 * MIB, 14 * MIB)])

    def test_what_was_there_before_the_events_is_found(self):
        whole = history.history(self.END, self.EVENTS)
        for first in (2, 3, 5):
            rest = history.history(self.END, self.EVENTS[first:])
            self.assertEqual(rest["moments"][0]["live"], whole["moments"][0]["live"], first)
            self.assertEqual(rest["moments"][0]["held"], whole["moments"][0]["held"], first)
        self.assertEqual(history.history(self.END, self.EVENTS[3:])["moments"][0]["places"][1][0], history.BEFORE)

    def test_a_block_on_two_mapped_parts_is_whole(self):
        events = [event("segment_map", 0, 2 * MIB), event("segment_map", 2 * MIB, 2 * MIB),
                  allocated(0, 4 * MIB, TRAIN)]
        end = [segment(0, 4 * MIB, [(0, 4 * MIB)], expandable=True)]
        peak = history.history(end, events)["moments"][0]
        self.assertEqual(peak["segments"], [[0, 4 * MIB, [[0, 4 * MIB, 0]]]])

    def test_a_block_that_other_streams_may_use_is_marked(self):
        events = [event("segment_alloc", 0, 4 * MIB), allocated(0, MIB, TRAIN), event("free_requested", 0, MIB),
                  allocated(MIB, 2 * MIB, MODEL)]
        peak = history.history([segment(0, 4 * MIB, [(MIB, 2 * MIB)])], events)["moments"][0]
        self.assertEqual(peak["live"], 2 * MIB)
        self.assertEqual(peak["segments"][0][2], [[0, MIB, -1], [MIB, 2 * MIB, 0]])

    def test_many_events_make_a_short_curve_with_all_peaks(self):
        events = [event("segment_alloc", 0, 4 * MIB)]
        for number in range(5000):
            events += [allocated(0, 4 * MIB if number == 3333 else MIB, TRAIN), *freed(0, MIB)]
        curve = history.history([segment(0, 4 * MIB)], events)["curve"]
        self.assertLessEqual(len(curve), history.POINTS)
        self.assertEqual(max(most for _, _, most, _ in curve), 4 * MIB)

    def test_the_device_with_most_memory(self):
        other = dict(segment(0, 64 * MIB), device=1)
        found = history.of_snapshot({"device_traces": [self.EVENTS, [event("segment_alloc", 0, 64 * MIB)], []],
                                     "segments": [*self.END, other]})
        self.assertEqual((found["device"], found["devices"]), (1, 2))
        self.assertIsNone(history.of_snapshot({"device_traces": [[], []], "segments": []}))


if __name__ == "__main__":
    unittest.main()
