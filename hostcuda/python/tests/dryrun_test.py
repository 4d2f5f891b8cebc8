"""The dry run's options, environments, search and table. No program is run, and nothing is loaded."""
import argparse
import contextlib
import io
import pathlib
import re
import signal
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from stillmap_hostcuda import dryrun, launcher, stillmap_library  # noqa: E402

GIB = 1 << 30


def options(*arguments):
    out = dryrun.parser().parse_args(list(arguments))
    return out, dryrun.check(out)


def program(*arguments):
    with mock.patch.object(launcher, "libraries", return_value=pathlib.Path("/lib")):
        return dryrun.Program(options(*arguments)[0])


def report(device, live):
    return {"live": live, "held": device, "retries": 0, "device": device, "skipped": 1, "violations": 0, "read": 0,
            "reads": [], "ended": []}


class Options(unittest.TestCase):
    def test_the_command_stillmap_passes_all_of_them_on(self):
        source = pathlib.Path(__file__).resolve().parents[3] / "tools/stillmap/dryrun/dryrun.cpp"
        passed = dict(re.findall(r'pass_on(?:_flag)?\(\s*c, \*o, "(--[\w-]+)",\s+"([^"]*)"', source.read_text()))
        own = {action.option_strings[-1]: action for action in dryrun.parser()._actions if action.option_strings}
        self.assertEqual(sorted([*passed, "--help"]), sorted(own))
        for name, action in own.items():
            if action.choices:
                self.assertEqual(passed[name], "|".join(action.choices), name)

    def test_sizes(self):
        for text, bytes_ in (("24GiB", 24 * GIB), ("1.5G", 3 * GIB // 2), ("512m", 512 << 20), ("4096", 4096)):
            self.assertEqual(dryrun.size(text), bytes_)
        with self.assertRaisesRegex(argparse.ArgumentTypeError, "'much' is not a size"):
            dryrun.size("much")

    def test_allocators(self):
        def chosen(found, *arguments):
            with mock.patch.object(stillmap_library, "find", return_value=found):
                return options(*arguments, "--", "x")
        there = pathlib.Path("/there.so")
        self.assertEqual(chosen(None)[1], ["native"])
        self.assertEqual(chosen(there)[1], ["native", "stillmap"])
        self.assertEqual(chosen(there)[0].stillmap, there)
        self.assertEqual(chosen(there, "--allocator", "native")[1], ["native"])
        self.assertEqual(chosen(None, "--allocator", "all")[1], ["native", "expandable", "async"])
        self.assertEqual(chosen(there, "--allocator", "all")[1], ["native", "expandable", "async", "stillmap"])
        self.assertEqual(chosen(there, "--allocator", "stillmap")[1], ["stillmap"])
        self.assertEqual(chosen(None, "--allocator", "async", "--allocator", "native", "--allocator", "async")[1],
                         ["async", "native"])
        with self.assertRaisesRegex(launcher.Failure, "Stillmap is not installed.*--stillmap FOLDER/libstillmap_torch.so"):
            chosen(None, "--allocator", "stillmap")
        with self.assertRaisesRegex(launcher.Failure, "there is no /absent.so"):
            options("--allocator", "stillmap", "--stillmap", "/absent.so", "--", "x")

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(launcher.Failure, "no program"):
            options("--gpu", "a100")
        with self.assertRaisesRegex(launcher.Failure, "--gpus 32: there can be 1 to 31"):
            options("--gpus", "32", "--", "x")
        with self.assertRaisesRegex(launcher.Failure, "--gpus needs --gpu h200 or h100"):
            options("--gpus", "2", "--gpu", "a100", "--", "x")


    def test_the_variable_must_be_in_an_argument(self):
        self.assertEqual(options("--find-batch", "B", "--", "x", "--batch={B}")[1], ["native"])
        with self.assertRaisesRegex(launcher.Failure, r"no argument of the program contains \{B\}"):
            options("--find-batch", "B", "--", "x", "B")


class Library(unittest.TestCase):
    """Where Stillmap is installed, as pip and CMake do it."""
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name).resolve()
        hostcuda = mock.patch.object(launcher, "libraries", return_value=self.folder / "nowhere")
        hostcuda.start()
        self.addCleanup(hostcuda.stop)
        self.path = mock.patch.dict("os.environ", {"PATH": str(self.folder / "bin"), "PYTHONPATH": ""})
        self.path.start()
        self.addCleanup(self.path.stop)

    def put(self, name, mode=0o644):
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        file.chmod(mode)
        return file

    def test_a_python_package(self):
        self.assertIsNone(stillmap_library.find("x"))
        native = self.put("site/stillmap/_native.abi3.so")
        self.put("site/stillmap/__init__.py").write_text("raise SystemExit('it was imported')")
        with mock.patch.object(sys, "path", [str(self.folder / "site"), *sys.path]):
            self.assertEqual(stillmap_library.find("x"), native)

    def test_the_package_of_the_programs_python(self):
        native = self.put("site/stillmap/_native.abi3.so")
        self.put("site/stillmap/__init__.py")
        with mock.patch.dict("os.environ", {"PYTHONPATH": str(self.folder / "site")}):
            self.assertIsNone(stillmap_library.find("x"))
            self.assertEqual(stillmap_library.find(sys.executable), native)
        self.assertIsNone(stillmap_library.find("python-that-is-not-there"))

    def test_an_installed_prefix(self):
        self.put("bin/stillmap", 0o755)
        self.assertIsNone(stillmap_library.find("x"))
        packaged = self.put("lib/x86_64-linux-gnu/stillmap/libstillmap_torch.so")
        self.assertEqual(stillmap_library.find("x"), packaged)
        library = self.put("lib/x86_64-linux-gnu/libstillmap_torch.so")
        self.assertEqual(stillmap_library.find("x"), library)
        beside = self.put("other/lib64/libstillmap_torch.so")
        with mock.patch.object(launcher, "libraries", return_value=self.folder / "other/lib64/stillmap/hostcuda"):
            self.assertEqual(stillmap_library.find("x"), beside)


class Environment(unittest.TestCase):
    def of(self, allocator, *arguments, memory=None):
        made = program(*arguments, "--", "x")
        with mock.patch.object(launcher, "check_settings"), mock.patch.dict("os.environ", {"HOME": "/h"}, clear=True):
            return made.environment(allocator, "/reports", memory or made.memory)

    def test_the_machine(self):
        self.assertEqual(self.of("native")["HOSTCUDA"], "profile=h200,kernels=skip,unbacked,vmm_in_capture=allow")
        self.assertEqual(self.of("native", "--gpu", "a100", "--memory", "1G", "--config", "lazy")["HOSTCUDA"],
                         "profile=a100,kernels=skip,unbacked,vmm_in_capture=allow,memory=%d,lazy" % GIB)
        self.assertTrue(self.of("native", "--gpus", "4")["HOSTCUDA"].startswith("profile=multi:4,"))
        self.assertIn("memory=4096", self.of("native", memory=4096)["HOSTCUDA"])

    def test_pytorchs_settings(self):
        self.assertNotIn("PYTORCH_ALLOC_CONF", self.of("native"))
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            self.assertEqual(self.of("expandable")[name], "expandable_segments:True")
            self.assertEqual(self.of("async")[name], "backend:cudaMallocAsync")

    def test_the_program_is_observed(self):
        out = self.of("native")
        self.assertTrue((pathlib.Path(out["PYTHONPATH"]) / "sitecustomize.py").exists())
        self.assertEqual(out["HOSTCUDA_DRYRUN_REPORT"], "/reports")
        self.assertNotIn("HOSTCUDA_DRYRUN_PICTURES", out)


class Search(unittest.TestCase):
    def test_finds_the_least_memory(self):
        made = program("--", "x")
        first = dryrun.Run(0, 1.0, [report(5 * GIB, GIB)], "")
        for needed in (GIB, 3 * GIB + 1, 5 * GIB):
            tried = []

            def run(_, memory, quiet, batch, needed=needed, tried=tried):
                self.assertTrue(quiet and batch == 7)
                tried.append(memory)
                return dryrun.Run(0 if memory >= needed else 1, 1.0, [], "")
            with mock.patch.object(made, "run", side_effect=run), contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(made.least("native", first, 7), -(-needed // dryrun.STEP) * dryrun.STEP)
            self.assertLessEqual(len(tried), 8)


class SearchOfABatch(unittest.TestCase):
    def test_finds_the_largest(self):
        made = program("--find-batch", "B", "--", "x", "{B}")
        first = dryrun.Run(0, 1.0, [report(GIB, GIB)], "")
        for largest in (1, 2, 3, 6, 8, 100, dryrun.LARGEST):
            tried = []

            def run(_, quiet, batch, largest=largest, tried=tried):
                self.assertTrue(quiet)
                tried.append(batch)
                return dryrun.Run(0 if batch <= largest else 1, float(batch), [report(GIB, GIB)], "")
            with mock.patch.object(made, "run", side_effect=run), contextlib.redirect_stderr(io.StringIO()) as said:
                batch, best = made.largest("native", first)
            self.assertEqual((batch, best.seconds), (largest, float(largest)))
            self.assertEqual(len(set(tried)), len(tried))
            self.assertLessEqual(len(tried), 2 * largest.bit_length())
            self.assertEqual(said.getvalue().count("does not fit"), sum(one > largest for one in tried))

    def test_a_run_without_a_report_does_not_fit(self):
        made = program("--find-batch", "B", "--", "x", "{B}")
        with mock.patch.object(made, "run", return_value=dryrun.Run(0, 1.0, [], "")), \
                contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(made.largest("native", dryrun.Run(0, 1.0, [], ""))[0], 1)

    def test_takes_the_place_of_the_variable(self):
        made = program("--find-batch", "B", "--", "x", "--batch={B}", "{B}{C}", "B")
        self.assertEqual(made.arguments(16), ["x", "--batch=16", "16{C}", "B"])
        self.assertEqual(program("--", "x", "{B}").arguments(16), ["x", "{B}"])


class TimeLimit(unittest.TestCase):
    def test_a_program_that_does_not_end_is_interrupted(self):
        # A shell without job control starts `dryrun ... &` with SIGINT ignored, which a child inherits.
        for handler in (signal.SIG_IGN, signal.default_int_handler):
            with self.subTest(handler=handler):
                before = signal.signal(signal.SIGINT, handler)
                self.addCleanup(signal.signal, signal.SIGINT, before)
                self.expect_interrupted()

    def expect_interrupted(self):
        with tempfile.TemporaryDirectory() as folder:
            ready = pathlib.Path(folder) / "ready"
            code = "import pathlib, time; pathlib.Path(%r).touch(); time.sleep(60)" % str(ready)
            made = program("--time-limit", "0.01", "--", sys.executable, "-c", code)
            waits = made.wait

            def wait_once_ready(process):
                # A slow machine takes longer than any short limit to start an interpreter.
                while process.poll() is None and not ready.exists():
                    time.sleep(0.01)
                return waits(process)

            with mock.patch.object(made, "environment", return_value={}), \
                    mock.patch.object(made, "wait", side_effect=wait_once_ready):
                run = made.run("native", quiet=True)
        self.assertEqual(run.status, dryrun.LATE)
        self.assertIn("KeyboardInterrupt", run.output)


class Output(unittest.TestCase):
    def run_it(self, run, *arguments):
        out = io.StringIO()
        with mock.patch.object(launcher, "libraries", return_value=pathlib.Path("/lib")), \
                mock.patch.object(dryrun.Program, "run", return_value=run), contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(io.StringIO()):
            status = dryrun.main([*arguments, "--", "x"])
        return status, out.getvalue()

    def test_the_table_is_of_the_process_with_most_memory(self):
        run = dryrun.Run(0, 2.0, [report(GIB, GIB), report(3 * GIB, 2 * GIB)], "")
        status, text = self.run_it(run)
        self.assertEqual(status, 0)
        self.assertRegex(text, r"native +2\.00 GiB +3\.00 GiB +3\.00 GiB +1\.500 +0 +2 s +ok")

    def test_reads_are_counted_and_named(self):
        found = dict(report(GIB, GIB), read=40, reads=[["train.py:7", 5], ["loop.py:2", 3]], ended=[["loop.py:2", 1]])
        _, text = self.run_it(dryrun.Run(0, 2.0, [found], ""))
        self.assertIn("40 bytes of device memory were copied to the host", text)
        self.assertIn("5  train.py:7\n", text)
        self.assertIn("3  loop.py:2, true after 256 times\n", text)

    def test_a_program_without_a_report_fails(self):
        status, text = self.run_it(dryrun.Run(0, 2.0, [], ""))
        self.assertEqual(status, 1)
        self.assertIn("no report", text)

    def test_the_report_is_of_the_largest_batch(self):
        def run(_, allocator, memory=None, quiet=False, batch=1):
            return dryrun.Run(0 if batch <= 5 else 1, 1.0, [report(batch * GIB, GIB)], "")
        out = io.StringIO()
        with mock.patch.object(launcher, "libraries", return_value=pathlib.Path("/lib")), \
                mock.patch.object(dryrun.Program, "run", autospec=True, side_effect=run), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            dryrun.main(["--find-batch", "B", "--", "x", "{B}"])
        self.assertRegex(out.getvalue(), r"native +1\.00 GiB +5\.00 GiB +5\.00 GiB +5\.000 +0 +5 ")

    def test_pictures_are_written_and_not_printed(self):
        found = dict(report(GIB, GIB), history={"curve": [[0, 0, 0, GIB], [1, 0, GIB, GIB]], "sampled": 0.002})
        with tempfile.TemporaryDirectory() as folder:
            _, text = self.run_it(dryrun.Run(0, 2.0, [found], ""), "--json", "--pictures", folder + "/new")
            drawn = (pathlib.Path(folder) / "new/memory.svg").read_text(encoding="utf-8")
        self.assertNotIn("curve", text)
        self.assertIn("<svg", drawn)
        self.assertIn("As on the GPU h200", drawn)

    def test_json(self):
        status, text = self.run_it(dryrun.Run(3, 2.0, [report(GIB, GIB)], ""), "--json")
        self.assertEqual(status, 1)
        self.assertIn('"status": 3', text)


if __name__ == "__main__":
    unittest.main()
