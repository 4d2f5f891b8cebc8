"""The launcher's settings, environment and messages. Nothing is built or loaded."""
import ast
import contextlib
import io
import os
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

PYTHON = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PYTHON))
from stillmap_hostcuda import launcher  # noqa: E402


class Settings(unittest.TestCase):
    def test_profiles_are_those_of_the_tests(self):
        text = (PYTHON.parents[1] / "tools/build/profiles.bzl").read_text()
        tested = []
        for kind in ("", "OTHER_"):
            lists = re.search(rf"^HOSTCUDA_{kind}PROFILES = (\[.*?\])", text, re.DOTALL | re.MULTILINE)
            tested += ast.literal_eval(lists.group(1))
        self.assertEqual([re.sub(r":\d+", ":N", name) for name in tested], list(launcher.PROFILES))
        for name in launcher.PROFILES:
            self.assertIn("\n  %s " % name, launcher.EPILOG)

    def test_later_settings_replace_earlier_ones(self):
        self.assertEqual(launcher.settings("multi:3", "skip", "memory=1G", base="profile=mig"),
                         "profile=mig,profile=multi:3,kernels=skip,memory=1G")
        self.assertEqual(launcher.settings(), "")

    def test_an_unknown_profile_lists_the_known_ones(self):
        for name in ("h300", "multi:N", "multi:", "multi:x"):
            with self.assertRaisesRegex(launcher.Failure, "unknown profile .*h200.*multi:N.*old-driver-450"):
                launcher.settings(name)
        for name in ("multi:0", "multi:32"):
            with self.assertRaisesRegex(launcher.Failure, "1 to 31"):
                launcher.settings(name)
        with self.assertRaisesRegex(launcher.Failure, "refuse, skip"):
            launcher.settings(kernels="run")


class Environment(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("libcuda.so.1", "libcudart.so.13"):
            (self.folder / name).touch()

    def test_names_the_libraries_that_there_are(self):
        out = launcher.environment(self.folder, "profile=mig", {"HOME": "/home"})
        self.assertEqual(out, {"HOME": "/home", "HOSTCUDA": "profile=mig", "LD_LIBRARY_PATH": str(self.folder),
                               "LD_PRELOAD": "%s/libcudart.so.13" % self.folder})

    def test_keeps_what_the_user_loads(self):
        out = launcher.environment(self.folder, "", {"LD_LIBRARY_PATH": "/a:/b", "LD_PRELOAD": "libasan.so.8"})
        self.assertEqual(out["LD_LIBRARY_PATH"], "%s:/a:/b" % self.folder)
        self.assertEqual(out["LD_PRELOAD"], "libasan.so.8:%s/libcudart.so.13" % self.folder)

    def test_a_python_program_loads_what_is_inside(self):
        out = launcher.inside({"PYTHONPATH": "/mine"}, HOSTCUDA_NUMBA="1")
        folder, mine = out["PYTHONPATH"].split(os.pathsep)
        self.assertTrue((pathlib.Path(folder) / "sitecustomize.py").exists())
        self.assertEqual((mine, out["HOSTCUDA_NUMBA"]), ("/mine", "1"))

    def test_the_program_by_itself_has_nothing_inside(self):
        with mock.patch.object(launcher, "__file__", str(self.folder / "hostcuda")):
            with self.assertRaisesRegex(launcher.Failure, "kernels numba is in the Python package"):
                launcher.inside({})

    def test_math_libraries_are_replaced_where_kernels_are_skipped(self):
        (self.folder / "mathlibs").mkdir()
        for name in ("libcudnn.so.9", "libcublas.so.13", "README"):
            (self.folder / "mathlibs" / name).touch()
        for text in ("", "kernels=refuse", "kernels=skip,memory=1G,kernels=refuse"):
            self.assertNotIn("mathlibs", launcher.environment(self.folder, text, {})["LD_PRELOAD"])
        out = launcher.environment(self.folder, "kernels=refuse,profile=mig,kernels=skip", {})
        self.assertEqual(out["LD_PRELOAD"].split(":"), ["%s/%s" % (self.folder, name) for name in (
            "libcudart.so.13", "mathlibs/libcublas.so.13", "mathlibs/libcudnn.so.9")])

    def test_a_folder_that_the_loader_cannot_name_is_refused(self):
        for name in ("/with space", "/with:colon"):
            with self.assertRaisesRegex(launcher.Failure, "install hostcuda elsewhere"):
                launcher.environment(pathlib.Path(name), "", {})


class Command(unittest.TestCase):
    def run_it(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = launcher.main(list(arguments))
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), err.getvalue()

    def test_help_names_every_option_and_no_gpu(self):
        status, out, _ = self.run_it("run", "--help")
        self.assertEqual(status, 0)
        for text in ("--profile", "--kernels", "--config", "PROGRAM", "multi:N", "There is no\nGPU"):
            self.assertIn(text, out)

    def test_mistakes_are_named(self):
        self.assertEqual(self.run_it()[0], 2)
        status, _, err = self.run_it("run", "--profile", "h300", "--", "true")
        self.assertEqual(status, 2)
        self.assertIn("hostcuda run: unknown profile 'h300'; there are: h200, ", err)
        status, _, err = self.run_it("run", "--profile", "mig")
        self.assertEqual(status, 2)
        self.assertIn("no program", err)

    def test_arguments_of_the_program_are_its_own(self):
        with mock.patch.object(launcher, "libraries", return_value=pathlib.Path("/lib")), \
                mock.patch.object(launcher, "check_settings"), \
                mock.patch.dict(os.environ, {"HOSTCUDA": "lazy"}), mock.patch.object(os, "execvpe") as run:
            launcher.main(["run", "--kernels", "skip", "--", "ls", "--profile", "x", "--", "y"])
        self.assertEqual(run.call_args.args[1], ["ls", "--profile", "x", "--", "y"])
        self.assertEqual(run.call_args.args[2]["HOSTCUDA"], "lazy,kernels=skip")

    def test_kernels_of_numba_are_skipped_by_the_driver(self):
        with mock.patch.object(launcher, "libraries", return_value=pathlib.Path("/lib")), \
                mock.patch.object(launcher, "check_settings"), \
                mock.patch.dict(os.environ, {}, clear=True), mock.patch.object(os, "execvpe") as run:
            launcher.main(["run", "--kernels", "numba", "--", "python3"])
        out = run.call_args.args[2]
        self.assertEqual((out["HOSTCUDA"], out["HOSTCUDA_NUMBA"]), ("kernels=skip", "1"))
        self.assertTrue(out["PYTHONPATH"].endswith("inside"))

    def test_without_libraries_it_says_where_it_looked(self):
        status, _, err = self.run_it("run", "--", "true")
        self.assertEqual(status, 2)
        self.assertIn("no libcuda.so.1 in %s" % (PYTHON / "stillmap_hostcuda"), err)


if __name__ == "__main__":
    unittest.main()
