"""Tests of requests to workers, and of failures, skips and time limits, without workers."""

import argparse
import contextlib
import io
import tempfile
import unittest

from budget import Share
from budget_test import Clock
from lab import Lab
from launcher import WorkerFailed
from output import Result
from parts import cuda_core, largest_batch, save_load, training

ALL = ["default", "expandable", "async", "stillmap"]


class Workers:
    """Answers by a function, and takes the time it is told to."""

    def __init__(self, clock, answer, each=1.0):
        self.clock, self.answer, self.each, self.asked = clock, answer, each, []

    def ask(self, allocator, job, seconds, then=None):
        self.asked.append((allocator, job, seconds, then))
        self.clock.now += self.each
        return self.answer(allocator, job)


class LabTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def lab(self, part, answer, seconds=100, allocators=ALL, device="cuda"):
        options = argparse.Namespace(device=device, quick=True, out=self.folder)
        self.workers, self.result = Workers(self.clock, answer), Result(part, {}, self.folder)
        return Lab(part, options, self.workers, self.result, Share(seconds, self.clock), allocators)

    def test_all_allocators_make_the_steps_of_the_first(self):
        lab = self.lab("training", lambda allocator, job: {"steps": job["steps"] or 17})
        lab.compare([{"model": "gpt2"}, {"model": "llama"}])
        self.assertEqual(
            [job["steps"] for _, job, _, _ in self.workers.asked], [None, 17, 17, 17] * 2
        )
        self.assertEqual([row["allocator"] for row in self.result.rows], ALL * 2)

    def test_the_next_worker_is_named(self):
        lab = self.lab("training", lambda allocator, job: {"steps": 1})
        lab.compare([{"model": "gpt2"}, {"model": "llama"}])
        thens = [then for _, _, _, then in self.workers.asked]
        self.assertEqual(thens, ALL[1:] + ["default"] + ALL[1:] + [None])

    def test_a_failure_is_a_row_and_the_others_go_on(self):
        def answer(allocator, job):
            if allocator == "default":
                raise WorkerFailed("it broke")
            return {"steps": job["steps"] or 5}

        self.lab("training", answer).compare([{"model": "gpt2"}])
        self.assertEqual(self.result.failed(), 1)
        self.assertEqual(
            self.result.rows[0], {"model": "gpt2", "allocator": "default", "error": "it broke"}
        )
        self.assertEqual([job["steps"] for _, job, _, _ in self.workers.asked], [None, None, 5, 5])

    def test_a_case_is_whole_or_skipped(self):
        lab = self.lab("training", lambda allocator, job: {"steps": 1}, seconds=5)
        lab.compare([{"model": name} for name in "abc"])
        self.assertEqual(len(self.result.rows), 8)
        self.assertEqual(self.result.skipped, ["c: no time was left"])

    def test_graphs_are_not_asked_of_a_plugged_in_allocator(self):
        lab = self.lab("training", lambda allocator, job: {"steps": 1})
        training.measure(lab)
        self.assertNotIn(
            ("stillmap", True), [(a, job["graph"]) for a, job, _, _ in self.workers.asked]
        )
        self.assertEqual(len(self.result.skipped), 1)
        self.assertIn(
            "gpt2 fixed graph stillmap: an allocator that is plugged in", self.result.skipped[0]
        )

    def test_the_largest_batch_begins_where_the_last_one_ended(self):
        limits = {"default": 3, "expandable": 4, "async": 2, "stillmap": 3}

        def answer(allocator, job):
            if job["batch"] > limits[allocator]:
                raise WorkerFailed("CUDA out of memory", out_of_memory=True)
            return {"steps": 8}

        largest_batch.measure(self.lab("largest_batch", answer))
        found = {row["allocator"]: row["largest"] for row in self.result.rows}
        self.assertEqual(found, limits)
        self.assertEqual(self.result.failed(), 0)
        self.assertTrue(all(row["complete"] for row in self.result.rows))
        self.assertLess(len(self.workers.asked), 14)

    def test_another_failure_than_memory_is_no_trial(self):
        def answer(allocator, job):
            raise WorkerFailed("it broke")

        largest_batch.measure(self.lab("largest_batch", answer, allocators=["default", "async"]))
        self.assertEqual([row["error"] for row in self.result.rows], ["it broke", "it broke"])

    def test_answers_of_several_rows_and_reasons(self):
        def answer(allocator, job):
            if job.get("place") == "disk":
                return {"skipped": "it is full"}
            return {"rows": [{"what": "save", "bytes": 1}, {"what": "load", "bytes": 1}]}

        save_load.measure(self.lab("save_load", answer))
        self.assertEqual(len(self.result.rows), 6)
        self.assertEqual(self.result.skipped, ["files disk default: it is full"])

    def test_what_is_not_there_is_skipped(self):
        cuda_core.measure(
            self.lab("cuda_core", lambda allocator, job: {"skipped": "it is not here"})
        )
        self.assertEqual(self.result.rows, [])
        self.assertEqual(self.result.skipped[0], "doubling: it is not here")


if __name__ == "__main__":
    unittest.main()
