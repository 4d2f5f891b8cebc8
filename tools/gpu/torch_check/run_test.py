"""Tests of the command line, and of a whole run with simulated workers."""

import contextlib
import io
import json
import os
import tempfile
import unittest
from unittest import mock

import models
import parts
import run
from launcher import WorkerFailed


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = folder.name

    def refused(self, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as caught:
            run.options_of([*arguments])
        self.assertEqual(caught.exception.code, 2)
        return said.getvalue()

    def run_with(self, ask, *arguments):
        """(the status, what was printed)."""
        said = io.StringIO()
        with mock.patch("launcher.Launcher.ask", ask), contextlib.redirect_stdout(said):
            with contextlib.redirect_stderr(said):
                status = run.main(["--device", "cpu", "--out", self.out, *arguments])
        return status, said.getvalue()

    def read(self, part):
        with open(os.path.join(self.out, f"torch_{part}.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_the_command_line(self):
        options = run.options_of(["--device", "cpu", "--out", "x"])
        self.assertEqual(options.only, list(parts.NAMES))
        self.assertEqual(options.seconds, 420)
        self.assertIn("there is no file", self.refused("--out", "x", "--library", "/there/is/none"))
        self.assertIn(
            "more than 0", self.refused("--out", "x", "--device", "cpu", "--seconds", "0")
        )
        self.assertIn(
            "invalid choice", self.refused("--out", "x", "--device", "cpu", "--only", "none")
        )
        self.assertIn("--out", self.refused("--device", "cpu"))

    def test_every_part_writes_its_file(self):
        def ask(launcher, allocator, job, seconds, then=None):
            return {"torch": "2"} if job["part"] == "machine" else {"steps": 3}

        status, said = self.run_with(ask)
        self.assertEqual(status, 0, said)
        for part in parts.NAMES:
            read = self.read(part)
            self.assertEqual(read["machine"], {"torch": "2"})
            self.assertTrue(read["rows"] or read["skipped"])
        self.assertIn("nothing failed", said)

    def test_only_some_parts(self):
        self.run_with(lambda *_, **__: {"steps": 3}, "--only", "growth")
        self.assertEqual(os.listdir(self.out), ["torch_growth.json"])

    def test_a_failed_row_is_the_status(self):
        def ask(launcher, allocator, job, seconds, then=None):
            if job["part"] == "growth":
                raise WorkerFailed("it broke")
            return {"steps": 3}

        status, said = self.run_with(ask, "--only", "growth", "serving")
        self.assertEqual(status, 1)
        self.assertIn("2 rows failed", said)
        self.assertEqual(self.read("growth")["rows"][0]["error"], "it broke")
        self.assertEqual(len(self.read("serving")["rows"]), 1)

    def test_a_part_that_breaks_is_a_failed_row(self):
        def ask(launcher, allocator, job, seconds, then=None):
            if job["part"] == "growth":
                raise KeyError("unforeseen")
            return {"steps": 3}

        status, _ = self.run_with(ask, "--only", "growth", "serving")
        self.assertEqual(status, 1)
        self.assertIn("KeyError", self.read("growth")["rows"][0]["error"])
        self.assertTrue(self.read("serving")["rows"])

    def test_without_pytorch_it_says_so(self):
        def ask(launcher, allocator, job, seconds, then=None):
            raise WorkerFailed("ModuleNotFoundError: No module named 'torch'")

        status, said = self.run_with(ask)
        self.assertEqual(status, 1)
        self.assertIn("PyTorch does not work here", said)

    def test_the_models_are_found(self):
        self.assertTrue(os.path.exists(os.path.join(models.folder_of_models(), "trace_models.py")))
        with self.assertRaises(FileNotFoundError):
            models.folder_of_models("/there/is/none")


if __name__ == "__main__":
    unittest.main()
