"""Each case of these tests is a program of its own: an allocator is chosen once in a process.

They need the framework, and a GPU or hostcuda with kernels=skip,memory=4G: tools/frameworks.sh.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, "not installed: " + ", ".join(missing))


class TestCase(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, code, *arguments, timeout=300, quiet=True, **environment):
        """Runs code in a new process, which has to end by itself with status 0. Returns its output."""
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *map(str, arguments)],
            capture_output=True, text=True, timeout=timeout, cwd=self.folder, env={**os.environ, **environment})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        if quiet:
            self.assertEqual(done.stderr, "", done.stdout)
        return done.stdout
