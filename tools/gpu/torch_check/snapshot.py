"""Reduces PyTorch's memory snapshots to the fields that `stillmap trace import` reads."""

import gzip
import pickle

EVENT = ("action", "addr", "size", "stream")
ACTIONS = ("alloc", "free_requested")
SEGMENT = ("device", "address", "stream")
BLOCK = ("address", "size", "requested_size", "state")


def only(names, of):
    return {name: of[name] for name in names if name in of}


def trimmed(snapshot):
    """Without stacks, times, settings, and what the allocator did about it all."""
    return {
        "device_traces": [
            [only(EVENT, event) for event in history if event["action"] in ACTIONS]
            for history in snapshot["device_traces"]
        ],
        "segments": [
            {
                **only(SEGMENT, segment),
                "blocks": [only(BLOCK, block) for block in segment["blocks"]],
            }
            for segment in snapshot["segments"]
        ],
    }


def save(snapshot, path):
    """How many events it has. Protocol 4 is what the importer is tried with."""
    small = trimmed(snapshot)
    with gzip.open(path, "wb", compresslevel=6) as out:
        pickle.dump(small, out, protocol=4)
    return sum(len(history) for history in small["device_traces"])
