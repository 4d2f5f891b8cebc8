"""stillmap.torch.report in PyTorch's unmodified wheel: the peaks of a recorded loop."""

import unittest

from processes import TestCase, needs

LOOP = """
import os, random, sys, torch, stillmap, stillmap.torch as st
MiB = 1 << 20
def run(sizes):
    kept, live, peak = [], 0, 0
    for n in sizes:
        kept.append(torch.empty(n, dtype=torch.uint8, device="cuda"))
        live += n
        peak = max(peak, live)
        if len(kept) > 20:
            live -= kept.pop(random.randrange(20)).numel()
    return peak
random.seed(1)
"""


@needs("torch")
class Report(TestCase):
    preamble = LOOP

    def test_random_lengths_hold_less_than_pytorchs_allocators(self):
        print(self.program("""
        recording = stillmap.record(os.path.join(sys.argv[1], "trace"))
        st.use()
        peak = run(random.randint(1, 64) * MiB for _ in range(400))
        for _ in range(2):  # the replay is not recorded
            told = st.report(recording)
            assert told.live == peak, (told, peak)
            assert all(held >= peak for held in told.held.values())
            assert told.saved() > 0 and told.saved("segments-expanding") > 0, told
        again = st.report(recording.path)
        assert again.live == peak and "Stillmap holds" in str(again) and "<table>" in again._repr_html_()
        assert os.environ["STILLMAP_RECORD"].endswith("trace"), "the recording goes on"
        print("random lengths", again, sep="\\n")
        """, self.folder))

    def test_fixed_lengths_hold_no_more(self):
        print(self.program("""
        recording = stillmap.record(os.path.join(sys.argv[1], "trace"))
        st.use()
        peak = run(16 * MiB for _ in range(400))
        told = st.report(recording)
        assert told.live == peak and told.saved() >= 0 and told.saved("segments-expanding") >= 0, told
        print("fixed lengths", told, sep="\\n")
        """, self.folder))

    def test_a_snapshot_at_out_of_memory(self):
        """Its figures are PyTorch's own, and the command says what Stillmap would have done."""
        self.program("""
        import json, subprocess
        path, seen = os.path.join(sys.argv[1], "oom.pickle"), []
        def observe(device, wanted, device_total, device_free):
            seen.append((wanted, device_free, torch.cuda.memory_reserved(), torch.cuda.memory_allocated()))
            torch.cuda.memory._dump_snapshot(path)
        torch.cuda.memory._record_memory_history(max_entries=100000, stacks="python", context=None)
        torch._C._cuda_attach_out_of_memory_observer(observe)
        live = []
        try:
            while True:
                live.append(torch.empty(random.randint(1, 60) * MiB, dtype=torch.uint8, device="cuda"))
                if sum(t.numel() for t in live) > 3500 * MiB:
                    for _ in range(12):
                        live.pop(random.randrange(len(live)))
        except torch.OutOfMemoryError:
            live.clear()
        (wanted, device_free, reserved, allocated), = seen
        done = subprocess.run([sys.executable, "-m", "stillmap", "trace", "compare", "--json", "--every-byte-shrink", "0",
                               "--svg", "", path], stdout=subprocess.PIPE, check=True, env={**os.environ, "HOSTCUDA": ""})
        told = json.loads(done.stdout)
        failure = told["recorded_failure"]
        assert (failure["requested_bytes"], failure["device_free_bytes"]) == (wanted, device_free), (failure, seen)
        assert (failure["held_bytes"], failure["free_in_pieces_bytes"]) == (reserved, reserved - allocated), (failure, seen)
        assert failure["largest_piece_bytes"] < wanted, failure
        assert told["verdict"]["would_have_served"] and told["ok"], told
        """, self.folder)

    def test_a_snapshot_of_the_native_allocator(self):
        self.program("""
        torch.cuda.memory._record_memory_history(max_entries=100000, stacks="python", context=None)
        peak = run(random.randint(1, 64) * MiB for _ in range(100))
        path = os.path.join(sys.argv[1], "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        told = st.report(path)
        assert told.live == peak, (told, peak)
        """, self.folder)

    def test_what_is_no_trace(self):
        self.program("""
        for path, kind in ((os.path.join(sys.argv[1], "none"), OSError), (sys.argv[2], stillmap.Error)):
            try:
                st.report(path)
                raise AssertionError("it is reported")
            except kind:
                pass
        """, self.folder, __file__)


if __name__ == "__main__":
    unittest.main()
