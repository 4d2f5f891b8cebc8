"""Tests of result files and tables."""

import contextlib
import io
import json
import os
import tempfile
import unittest

from output import FORMAT, Result, label


class OutputTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.result = Result("training", {"torch": "2"}, self.folder)

    def read(self):
        with open(self.result.path, encoding="utf-8") as file:
            return json.load(file)

    def test_the_file_has_everything(self):
        self.result.add({"allocator": "default", "steps": 3, "utilisation": None})
        self.result.add({"allocator": "async", "error": "no"})
        with contextlib.redirect_stdout(io.StringIO()):
            self.result.skip("because")
        self.assertEqual(os.listdir(self.folder), ["torch_training.json"])
        read = self.read()
        self.assertEqual(read["format"], FORMAT)
        self.assertEqual(read["part"], "training")
        self.assertEqual(read["machine"], {"torch": "2"})
        self.assertEqual([row["allocator"] for row in read["rows"]], ["default", "async"])
        self.assertEqual(read["skipped"], ["because"])
        self.assertEqual(self.result.failed(), 1)

    def test_each_row_is_written_at_once(self):
        self.result.add({"allocator": "default"})
        self.assertEqual(len(self.read()["rows"]), 1)
        self.result.add({"allocator": "async"})
        self.assertEqual(len(self.read()["rows"]), 2)

    def test_the_table_shows_failures_and_reasons(self):
        self.result.add({"allocator": "default", "steps": 3})
        self.result.add({"allocator": "async", "error": "no"})
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            self.result.skip("because")
            self.result.show(("allocator", "steps"))
        for said in ("default    3", "FAILED async: no", "skipped: because"):
            self.assertIn(said, shown.getvalue())

    def test_a_label_is_words_and_switches(self):
        self.assertEqual(
            label(
                {"model": "gpt2", "checkpointing": True, "graph": False, "batch": 3, "error": "x"}
            ),
            "gpt2 checkpointing",
        )


if __name__ == "__main__":
    unittest.main()
