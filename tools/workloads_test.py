"""Tests of the generated workloads: traces of the right format that do what they are named for."""

import collections
import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import workloads  # noqa: E402
from workloads import GIB, KIB, MIB, WORKLOADS, Trace, generate  # noqa: E402

SCALE, ITERATIONS, STEPS_OF_TRAINING = 0.05, 4, 20
STREAMS = {"cross_streams": 16, "sharded_three_streams": 3, "exact_random_loop_streams": 4}
REPEATS_AFTER = {"pipeline_1f1b": 1, "sharded_three_streams": 1, "exact_random_loop": 1,
                 "exact_random_loop_streams": 1, "training_with_evaluation": 10}  # fmt: skip
NOT_RANDOM = {"training_with_evaluation", "pipeline_1f1b", "sharded_three_streams"}

# Of all small traces together. Published results name a workload and a seed: whoever changes what
# they stand for changes this too.
DIGEST = "9e7a0ae277ce2d53a246ddaac5a4ed3017335ad3c4660273375e3c9745e042ba"


class Parsed:
    """A trace, by rules of the format written down here again."""

    def __init__(self, text):
        first, *lines = text.splitlines()
        assert first == "# stillmap-trace v1", first
        assert text.endswith("\n")
        self.live, self.ended = {}, set()  # live: id -> (bytes, stream)
        self.streams = self.live_bytes = self.peak_bytes = 0
        self.sizes = []
        self.parts = [[]]  # events of the model, of each iteration, and after the last
        self.live_at = []  # live blocks at each boundary
        self.numbers = {}  # id -> its name in `parts`
        for line in lines:
            verb, *numbers = line.split(",")
            if not verb.startswith("#"):
                getattr(self, "take_" + verb)(*map(self.number, numbers))

    @staticmethod
    def number(text):
        assert text.isdecimal() and text.isascii(), text
        return int(text)

    def stream(self, number):
        assert number < 4096, number
        self.streams = max(self.streams, number + 1)

    def event(self, *event):
        self.parts[-1].append(event)

    def name(self, id_):
        """Blocks of an iteration by their order in it; others by part and order."""
        part, order = self.numbers[id_]
        return order if part == len(self.parts) else (part, order)

    def take_a(self, id_, bytes_, stream):
        assert id_ not in self.live and id_ not in self.ended, id_
        assert 1 <= bytes_ < 2**48, bytes_
        self.stream(stream)
        self.live[id_] = (bytes_, stream)
        self.live_bytes += bytes_
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.sizes.append(bytes_)
        self.numbers[id_] = (len(self.parts), len(self.parts[-1]))
        self.event("a", bytes_, stream)

    def take_f(self, id_):
        self.event("f", self.name(id_))
        self.live_bytes -= self.live.pop(id_)[0]
        self.ended.add(id_)

    def take_u(self, id_, stream):
        assert id_ in self.live, id_
        self.stream(stream)
        self.event("u", self.name(id_), stream)

    def take_s(self, stream, waits):
        assert stream != waits, stream
        self.stream(stream)
        self.stream(waits)
        self.event("s", stream, waits)

    def take_i(self):
        self.parts.append([])
        self.live_at.append(sorted(self.live.values()))


class WorkloadsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.traces = {name: generate(name, 1, ITERATIONS, SCALE) for name in WORKLOADS}
        cls.parsed = {name: Parsed(trace.text()) for name, trace in cls.traces.items()}

    def for_each(self, test, names=WORKLOADS):
        for name in names:
            with self.subTest(name):
                test(name, self.parsed[name])

    def test_sixteen(self):
        self.assertEqual(len(WORKLOADS), 16)
        for names in (STREAMS, REPEATS_AFTER, NOT_RANDOM):
            self.assertLessEqual(set(names), set(WORKLOADS))

    def test_a_model_then_iterations(self):
        def test(name, parsed):
            iterations = STEPS_OF_TRAINING if name == "training_with_evaluation" else ITERATIONS
            self.assertEqual(len(parsed.live_at), 1 + iterations)
            self.assertTrue(all(parsed.parts[1:-1]))
            self.assertEqual(parsed.parts[-1], [])

        self.for_each(test)

    def test_totals(self):
        def test(name, parsed):
            trace = self.traces[name]
            self.assertEqual(trace.blocks, len(parsed.sizes))
            self.assertEqual(trace.boundaries, len(parsed.live_at))
            self.assertEqual(trace.live_bytes, parsed.live_bytes)
            self.assertEqual(trace.peak_bytes, parsed.peak_bytes)
            self.assertEqual(trace.streams, parsed.streams)

        self.for_each(test)

    def test_full_scale(self):
        for name in set(WORKLOADS) - {"tiny_blocks"}:
            with self.subTest(name):
                trace = generate(name, iterations=1)
                self.assertTrue(2 <= trace.peak_bytes / GIB <= 50, trace.peak_bytes)
                self.assertLess(8 * len(trace.lines), 320_000)

    def test_streams(self):
        def test(name, parsed):
            self.assertEqual(parsed.streams, STREAMS.get(name, 1))
            verbs = {event[0] for part in parsed.parts for event in part}
            self.assertEqual({"u", "s"} <= verbs, name in STREAMS)

        self.for_each(test)

    def test_exact_workloads_repeat(self):
        def test(name, parsed):
            period, iterations = REPEATS_AFTER[name], parsed.parts[1:-1]
            self.assertGreater(len(iterations), period)
            for earlier, later in zip(iterations, iterations[period:]):
                self.assertEqual(earlier, later)
            for live in parsed.live_at[1:]:
                self.assertEqual(live, parsed.live_at[0])

        self.for_each(test, REPEATS_AFTER)

    def test_variable_workloads_do_not(self):
        def test(_, parsed):
            sizes = [[event[1] for event in part if event[0] == "a"] for part in parsed.parts[1:-1]]
            for at, these in enumerate(sizes):
                self.assertNotIn(these, sizes[:at])

        self.for_each(test, [name for name in WORKLOADS if name not in REPEATS_AFTER])

    def test_the_seed_decides(self):
        def test(name, _):
            events = self.traces[name].lines[2:]
            self.assertEqual(generate(name, 1, ITERATIONS, SCALE).lines[2:], events)
            other = generate(name, 2, ITERATIONS, SCALE).lines[2:]
            (self.assertEqual if name in NOT_RANDOM else self.assertNotEqual)(other, events)

        self.for_each(test)

    def test_the_text_is_the_same_everywhere(self):
        digest = hashlib.sha256()
        for trace in self.traces.values():
            digest.update(trace.text().encode())
        self.assertEqual(digest.hexdigest(), DIGEST)

    def test_more_iterations_begin_alike(self):
        for name in WORKLOADS:
            with self.subTest(name):
                fewer = generate(name, 1, 2, SCALE).lines[2:]
                self.assertEqual(self.traces[name].lines[2 : 2 + len(fewer)], fewer)

    def test_kv_blocks_are_of_one_size(self):
        model, *later = self.parsed["serving_kv_blocks"].live_at
        kv = [live for at in later for live in collections.Counter(at) - collections.Counter(model)]
        self.assertEqual(set(kv), {(64 * 2 * 4 * 1024, 0)})

    def test_growing_kv_replaces_each_layer(self):
        """Each step makes a tensor that has one token more than a tensor before it."""
        parsed = self.parsed["serving_variable_length"]
        model, *later = parsed.live_at
        token = 4 * 1024
        for at in later:
            kv = collections.Counter(at) - collections.Counter(model)
            for (bytes_, _), count in kv.items():
                self.assertEqual((bytes_ % token, count % 2), (0, 0))
                self.assertIn(bytes_ - token, parsed.sizes)

    def test_expert_tokens_have_a_fixed_sum(self):
        iterations = self.parsed["mixture_of_experts"].parts[1:-1]
        allocated = [sum(e[1] for e in part if e[0] == "a") for part in iterations]
        self.assertEqual(len(set(allocated)), 1)

    def test_sizes_around_powers_of_two(self):
        above = 0
        sizes = self.parsed["below_powers_of_two"].sizes
        for size in sizes:
            nearest = 1 << ((size * 4 // 3).bit_length() - 1)
            self.assertLess(0, abs(size - nearest))
            self.assertLess(abs(size - nearest), nearest // 16)
            above += size > nearest
        self.assertTrue(0.1 < above / len(sizes) < 0.3)

    def test_evaluation_after_every_tenth_step(self):
        steps = self.parsed["training_with_evaluation"].parts[1:-1]
        longer = [at for at, step in enumerate(steps, 1) if len(step) > len(steps[0])]
        self.assertEqual(longer, [10, 20])

    def test_pinholes_hold_every_page(self):
        parsed = self.parsed["pinholes"]
        survivors = parsed.live_at[1]
        for bytes_, _ in survivors:
            self.assertTrue(16 * KIB <= bytes_ <= 512 * KIB)
        small = [e[1] for e in parsed.parts[1] if e[0] == "a" and e[1] <= 512 * KIB]
        freed = sum(small) - sum(bytes_ for bytes_, _ in survivors)
        self.assertLess(freed / len(survivors), 2 * MIB)

    def test_vectors_grow_by_half(self):
        parsed = self.parsed["growing_vectors"]
        sizes = set(parsed.sizes)
        grown = [size for size in sizes if size > MIB]
        self.assertTrue(grown)
        for size in grown:
            self.assertTrue({size * 2 // 3, size * 2 // 3 + 1} & sizes, size)

    def test_tiny_blocks(self):
        parsed = self.parsed["tiny_blocks"]
        for live in parsed.live_at:
            tiny = [bytes_ for bytes_, _ in live if bytes_ < 2 * KIB]
            self.assertEqual(len(tiny), 1_000_000 * SCALE)
            self.assertGreaterEqual(min(tiny), 16)


class TraceTest(unittest.TestCase):
    def test_refuses_what_no_program_does(self):
        trace = Trace("test")
        block = trace.allocate(100)
        ended = trace.allocate(1)
        trace.free(ended)
        for wrong in (lambda: trace.free(ended), lambda: trace.use(ended, 1),
                      lambda: trace.wait(2, 2), lambda: trace.use(block, 4096),
                      lambda: trace.allocate(0), lambda: trace.allocate(2**48),
                      lambda: trace.allocate(1, -1)):  # fmt: skip
            self.assertRaises(ValueError, wrong)
        self.assertEqual(trace.lines[2:], ["a,0,100,0", "a,1,1,0", "f,1"])

    def test_a_stream_waits_for_the_other(self):
        trace = Trace("test")
        trace.wait(1, 2)
        self.assertEqual(trace.lines[-1], "s,2,1")
        self.assertEqual(trace.streams, 3)


class CommandTest(unittest.TestCase):
    def run_main(self, *arguments):
        """The exit status, standard output and standard error."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                workloads.main(arguments)
                status = 0
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), err.getvalue()

    def test_list(self):
        status, out, _ = self.run_main("--list")
        self.assertEqual(status, 0)
        names = [line for line in out.splitlines() if not line.startswith(" ")]
        self.assertEqual(names, list(WORKLOADS))

    def test_writes_files_and_a_table(self):
        with tempfile.TemporaryDirectory() as folder:
            status, out, _ = self.run_main("--into", folder, "--scale", "0.05", "--seed", "3",
                                           "--iterations", "2", "holes", "cross_streams")  # fmt: skip
            self.assertEqual(status, 0)
            _, *rows = [line.split() for line in out.splitlines()]
            self.assertEqual([row[0] for row in rows], ["holes", "cross_streams"])
            self.assertEqual(rows[1][3:5], ["2", "16"])
            end = ".zst" if shutil.which("zstd") else ""
            self.assertEqual(sorted(os.listdir(folder)),
                             ["cross_streams.trace" + end, "holes.trace" + end])  # fmt: skip
            path = os.path.join(folder, "holes.trace" + end)
            read = ["zstd", "-dcq", path] if end else ["cat", path]
            text = subprocess.run(read, stdout=subprocess.PIPE, check=True, text=True).stdout
            self.assertEqual(text, generate("holes", 3, 2, 0.05).text())
            self.assertEqual(int(rows[0][1]), len(text.splitlines()))

    def test_without_zstd(self):
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch.object(shutil, "which", return_value=None):  # fmt: skip
            self.run_main("--into", folder, "--scale", "0.05", "--iterations", "1", "holes")
            with open(os.path.join(folder, "holes.trace"), encoding="ascii") as file:
                self.assertEqual(file.read(), generate("holes", 1, 1, 0.05).text())

    def test_wrong_arguments(self):
        for arguments, said in ((["--into", "x", "nothing"], "there is no workload nothing"),
                                (["holes"], "--into FOLDER"),
                                (["--into", "x", "--iterations", "0"], "--iterations is"),
                                (["--into", "x", "--scale", "0"], "--scale over 0")):  # fmt: skip
            with self.subTest(arguments):
                status, _, err = self.run_main(*arguments)
                self.assertEqual(status, 2)
                self.assertIn(said, err)
                self.assertFalse(os.path.exists("x"))


if __name__ == "__main__":
    unittest.main()
