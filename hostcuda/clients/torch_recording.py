"""Runs a program of tools/record_torch_trace.py on the device, and compares the peak of what it requests with that of
its recording, which was made without any device.

    torch_recording.py NAME
"""
import contextlib
import gc
import pathlib
import subprocess
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import record_torch_trace as recordings  # noqa: E402

MOST = 0.01  # of the peak


class NoRecorder:
    """Takes what a program says to the recorder."""

    def boundary(self):
        pass

    def wait(self, waits, until):
        pass

    def use(self, tensor, stream):
        pass

    @contextlib.contextmanager
    def on_stream(self, number):
        yield


def recorded_peak(name):
    text = subprocess.run(["zstdcat", ROOT / "bench/traces" / (name + ".trace.zst")], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    line = next(line for line in text.splitlines() if line.startswith("# peak of live bytes "))
    return int(line.split()[-1])


def main():
    name = sys.argv[1]
    recordings.GPU = torch.device("cuda")
    gc.disable()  # as for the recording
    recordings.JOBS[name](NoRecorder())
    peak, recorded = torch.cuda.memory_stats()["requested_bytes.all.peak"], recorded_peak(name)
    print("%s: %d bytes requested at the peak, %d recorded: %+.4f %%" % (name, peak, recorded,
                                                                       100 * (peak / recorded - 1)))
    if abs(peak - recorded) > MOST * recorded:
        raise SystemExit("the peaks differ by more than %.0f %%" % (100 * MOST))


if __name__ == "__main__":
    main()
