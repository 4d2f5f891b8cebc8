"""Tests of the reduction of PyTorch's memory snapshots."""

import gzip
import os
import pickle
import tempfile
import unittest

import snapshot

BLOCK = {
    "address": 4096,
    "size": 512,
    "requested_size": 500,
    "state": "active_allocated",
    "frames": [],
}
FULL = {
    "segments": [
        {"device": 0, "address": 4096, "stream": 0, "total_size": 2 << 20, "blocks": [BLOCK]}
    ],
    "device_traces": [
        [
            {"action": "segment_alloc", "addr": 4096, "size": 2 << 20, "stream": 0, "time_us": 1},
            {"action": "alloc", "addr": 4096, "size": 500, "stream": 0, "time_us": 2, "frames": []},
            {"action": "free_requested", "addr": 4096, "size": 500, "stream": 0, "time_us": 3},
            {"action": "free_completed", "addr": 4096, "size": 500, "stream": 0, "time_us": 3},
            {"action": "oom", "device_free": 3, "size": 500, "stream": 0, "time_us": 3},
        ],
        [],
    ],
    "allocator_settings": {"expandable_segments": False},
}


class SnapshotTest(unittest.TestCase):
    def test_only_what_the_program_asked_for_is_kept(self):
        small = snapshot.trimmed(FULL)
        self.assertEqual(
            small["device_traces"],
            [
                [
                    {"action": "alloc", "addr": 4096, "size": 500, "stream": 0},
                    {"action": "free_requested", "addr": 4096, "size": 500, "stream": 0},
                ],
                [],
            ],
        )
        self.assertNotIn("allocator_settings", small)
        self.assertNotIn("frames", small["segments"][0]["blocks"][0])
        self.assertEqual(small["segments"][0]["blocks"][0]["requested_size"], 500)

    def test_saved_compressed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.pickle.gz")
            self.assertEqual(snapshot.save(FULL, path), 2)
            with gzip.open(path) as file:
                self.assertEqual(pickle.load(file), snapshot.trimmed(FULL))


if __name__ == "__main__":
    unittest.main()
