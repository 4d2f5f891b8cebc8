"""Tests of worker processes, with workers that load no framework."""

import os
import sys
import tempfile
import textwrap
import time
import unittest

import launcher
from launcher import Launcher, WorkerFailed

WORKER = """
import json, os, sys, time
line = sys.stdin.readline()
if not line:
    sys.exit(0)
job = json.loads(line)
do = job["do"]
print("its last words")
sys.stdout.flush()
if do == "crash":
    os._exit(3)
if do == "hang":
    time.sleep(600)
conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
said = {"result": {"allocator": sys.argv[1], "conf": conf, "pid": os.getpid()}}
if do == "fail":
    said = {"error": "ValueError: no", "out_of_memory": False}
if do == "memory":
    said = {"error": "OutOfMemoryError: full", "out_of_memory": True}
with open(job["answer"], "w") as out:
    json.dump(said, out)
sys.exit(4 if do == "bad end" else 0)
"""


class LauncherTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        script = os.path.join(folder.name, "worker.py")
        with open(script, "w", encoding="utf-8") as out:
            out.write(textwrap.dedent(WORKER))
        self.launcher = self.enterContext(Launcher("cuda", "lib.so", [sys.executable, script]))

    def ask(self, do, allocator="default", seconds=1, then=None):
        return self.launcher.ask(allocator, {"do": do}, seconds, then)

    def failure(self, do, seconds=1):
        with self.assertRaises(WorkerFailed) as caught:
            self.ask(do, seconds=seconds)
        return caught.exception

    def test_each_job_has_a_process_of_its_own(self):
        first = self.ask("answer", then="default")
        second = self.ask("answer")
        self.assertNotEqual(first["pid"], second["pid"])

    def test_the_allocator_is_in_the_environment(self):
        self.assertIsNone(self.ask("answer")["conf"])
        self.assertEqual(self.ask("answer", "expandable")["conf"], "expandable_segments:True")
        self.assertEqual(self.ask("answer", "async")["conf"], "backend:cudaMallocAsync")

    def test_what_was_prepared_is_used(self):
        self.ask("answer", then="async")
        prepared = self.launcher.spares["async"].process.pid
        self.assertEqual(self.ask("answer", "async")["pid"], prepared)
        self.assertEqual(self.launcher.spares, {})

    def test_failures_are_told_apart(self):
        self.assertEqual(str(self.failure("fail")), "ValueError: no")
        self.assertTrue(self.failure("memory").out_of_memory)
        self.assertFalse(self.failure("fail").out_of_memory)
        self.assertEqual(str(self.failure("crash")), "it ended with status 3: its last words")
        self.assertIn("its end had status 4", str(self.failure("bad end")))

    def test_one_that_hangs_is_ended(self):
        grace, launcher.GRACE = launcher.GRACE, 0.5
        try:
            began = time.monotonic()
            self.assertIn("no answer after 0 s: its last words", str(self.failure("hang", 0)))
        finally:
            launcher.GRACE = grace
        self.assertLess(time.monotonic() - began, 30)

    def test_one_that_cannot_be_started_fails_alone(self):
        self.launcher.command = [sys.executable, "/there/is/none.py"]
        self.assertIn("it ended with status 2", str(self.failure("answer")))

    def test_what_was_not_needed_ends(self):
        with self.launcher as one:
            one.prepare("async")
            process = one.spares["async"].process
        self.assertIsNotNone(process.poll())


if __name__ == "__main__":
    unittest.main()
