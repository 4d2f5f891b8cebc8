"""The package as a whole: import, exceptions, traces, the command, the shared object."""

import os
import pickle
import shutil
import statistics
import subprocess
import sys
import unittest

import stillmap
from stillmap.__main__ import find_command, with_group
from support import MiB, TestCase


class Import(TestCase):
    def test_needs_no_gpu_and_no_numpy(self):
        self.run_python("""
            import sys
            sys.modules["numpy"] = None
            import stillmap
            assert stillmap.device_count() == 0
            try:
                stillmap.device_info()
            except stillmap.NotSupportedError as error:
                assert "driver" in str(error), error
            else:
                raise SystemExit(1)
            stillmap.stream_handle(None), stillmap.version(), stillmap.plugin_path()
        """, STILLMAP_DRIVER="/nonexistent/libcuda.so.1")

    def test_is_quick(self):
        code = "import time; t = time.perf_counter(); import stillmap; print(time.perf_counter() - t)"
        seconds = statistics.median(float(self.run_python(code)) for _ in range(5))
        print("\nimport stillmap takes %.1f ms" % (1000 * seconds))
        self.assertLess(seconds, 0.1)

    def test_a_subinterpreter_is_refused_and_breaks_nothing(self):
        said = self.run_python("""
            import sys
            try:
                import _xxsubinterpreters as interpreters   # 3.10 to 3.12
            except ImportError:
                import _interpreters as interpreters
            other = interpreters.create()
            code = "import sys; sys.path[:] = %r\\ntry: import stillmap\\nexcept ImportError as e: print(e, flush=True)" % sys.path
            for first in (True, False):   # before and after the import here
                interpreters.run_string(other, code)
                sys.stdout.flush()
                import stillmap
                buffer = stillmap.GrowableBuffer(1)
                print(repr(buffer), flush=True)
                try: stillmap.GrowableBuffer(1, device=99)
                except stillmap.Error as error: print(isinstance(error, ValueError), flush=True)
                buffer.close()
            interpreters.destroy(other)   # else CPython ends it while it ends itself
        """)
        lines = said.splitlines()
        self.assertEqual(lines[1:3], ["<stillmap.GrowableBuffer '' on device 0>", "True"], said)
        self.assertIn("interpreter", lines[0])  # CPython 3.13 refuses by itself
        self.assertEqual(lines[:3], lines[3:], said)

    def test_all_names(self):
        for name in stillmap.__all__:
            self.assertTrue(getattr(stillmap, name).__doc__, name)
        self.assertEqual(stillmap.__version__, stillmap.version())

    def test_stub_has_every_name(self):
        """The stub and the module name the same classes, functions and members."""
        import ast
        stub = os.path.join(os.path.dirname(stillmap.__file__), "_native.pyi")
        with open(stub) as file:
            tree = ast.parse(file.read())
        named = {}
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                named[node.name] = node
            elif isinstance(node, ast.AnnAssign):
                named[node.target.id] = node
        native = {n for n in dir(stillmap._native) if not n.startswith("_")}
        self.assertEqual({n for n in named if not n.startswith("_")}, native)
        for name, node in named.items():
            if isinstance(node, ast.ClassDef) and not issubclass(getattr(stillmap, name), BaseException):
                members = {m.name for m in node.body if isinstance(m, ast.FunctionDef)}
                members |= {m.target.id for m in node.body if isinstance(m, ast.AnnAssign)}
                real = {m for m in vars(getattr(stillmap, name)) if not m.startswith("__")}
                self.assertEqual({m for m in members if not m.startswith("__")}, real, name)


class Exceptions(TestCase):
    def test_kinds(self):
        for kind, base in ((stillmap.Error, RuntimeError), (stillmap.InvalidArgumentError, ValueError),
                           (stillmap.OutOfMemoryError, MemoryError),
                           (stillmap.NotSupportedError, NotImplementedError),
                           (stillmap.BusyError, stillmap.Error), (stillmap.DeviceLostError, stillmap.Error),
                           (stillmap.CancelledError, stillmap.Error), (stillmap.CorruptError, stillmap.Error)):
            self.assertTrue(issubclass(kind, base) and issubclass(kind, stillmap.Error))
            self.assertEqual(kind.__module__, "stillmap")

    def test_details_survive_pickling(self):
        with self.assertRaises(stillmap.InvalidArgumentError) as raised:
            stillmap.device_info(99)
        copy = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual((type(copy), str(copy)), (type(raised.exception), str(raised.exception)))
        self.assertEqual((copy.operation, copy.reason, copy.value, copy.unit, copy.subject),
                         ("device::open", "there is no such device", 99, "", ""))

    def test_paths_that_are_not_utf8(self):
        with self.assertRaises(FileNotFoundError) as raised:
            stillmap.restore(b"/no\xff/image.smi")
        self.assertEqual(os.fsencode(raised.exception.filename), b"/no\xff/image.smi")
        self.assertRaises(ValueError, stillmap.restore, "a\0b")


class Traces(TestCase):
    def record(self):
        with stillmap.record(self.path("a.trace")) as recording:
            with stillmap.CachingAllocator() as heap:
                for _ in range(3):
                    blocks = [heap.allocate(n) for n in (1000, 5 * MiB, 7 * MiB)]
                    for block in blocks:
                        heap.free(block)
                    heap.mark_iteration()
        return recording.path

    def test_recorded_and_replayed(self):
        path = self.record()
        self.assertNotIn("STILLMAP_RECORD", os.environ)
        with open(path) as file:
            self.assertEqual(sum(line.startswith("a,") for line in file), 9)
        stillmap.CachingAllocator().allocate(1)  # is not recorded
        for allocator in ("stillmap", "direct", "segments"):
            result = stillmap.replay(path, allocator, verify=True)
            self.assertEqual((result["oom"], result["peak_live_bytes"]), (False, 12 * MiB + 1000))
            self.assertGreater(result["bytes_checked"], 0)
        starved = stillmap.replay(path, capacity=6 * MiB)
        self.assertTrue(starved["oom"])
        self.assertIn("operation", starved["where_oom"])

    def test_memory_over_the_run(self):
        path = self.record()
        with stillmap.record(self.path("b.trace")) as other:
            drawn = stillmap.timeline(path, capacity=24 * MiB, points=8)
        with open(other.path) as file:
            self.assertFalse([line for line in file if line.startswith("a,")], "a replay is not recorded")
        self.assertEqual(list(drawn.curves())[0], "stillmap")
        for points in drawn.curves().values():
            self.assertLessEqual(len(points), 8)
            self.assertEqual(max(live for _, live, _ in points), 12 * MiB + 1000)
            self.assertTrue(all(held >= live for _, live, held in points))
        self.assertEqual(drawn._repr_svg_(), drawn.to_svg())
        drawn.save(self.path("a.svg"))
        self.assertRaisesSaying(stillmap.InvalidArgumentError, ".svg", drawn.save, "a.png")
        self.assertRaises(FileNotFoundError, drawn.save, self.path("no/folder.svg"))
        self.assertRaisesSaying(ValueError, "segments", stillmap.timeline, path, ["nothing"])

    def test_errors(self):
        self.assertRaises(FileNotFoundError, stillmap.record, self.path("no/folder.trace"))
        path = self.record()
        self.assertRaisesSaying(ValueError, "segments", stillmap.replay, path, "nothing")
        self.assertRaises(FileNotFoundError, stillmap.replay, self.path("none"))
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.replay, path, capacity=1 << 60)
        with open(self.path("bad"), "w") as file:
            file.write("# stillmap-trace v1\nx\n")
        self.assertRaisesSaying(ValueError, "bad", stillmap.replay, self.path("bad"))

    def test_an_existing_file_is_kept(self):
        first, second = self.record(), None
        self.run_python("""
            import os, stillmap, sys
            with stillmap.record(sys.argv[1]) as recording: pass
            assert recording.path == sys.argv[1] + "." + str(os.getpid())
        """, first)
        del second


class Command(TestCase):
    def test_groups_may_be_left_out(self):
        self.assertEqual(with_group(["compare", "x"]), ["trace", "compare", "x"])
        self.assertEqual(with_group(["inspect", "x"]), ["image", "inspect", "x"])
        self.assertEqual(with_group(["doctor"]), ["doctor"])
        self.assertEqual(with_group(["trace", "compare"]), ["trace", "compare"])
        self.assertEqual(with_group([]), [])

    def test_runs(self):
        if find_command() is None:
            self.skipTest("the command is not installed")
        done = subprocess.run([sys.executable, "-m", "stillmap", "doctor"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertIn("Device 0", done.stdout, done.stderr)
        done = subprocess.run([sys.executable, "-m", "stillmap", "replay", "--help"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertIn("Replays a recorded program", done.stdout)


class Installed(TestCase):
    """As pip installs it: packages side by side in one folder, and a script in PATH."""
    def setUp(self):
        super().setUp()
        self.site = self.path("site packages")
        shutil.copytree(os.path.dirname(stillmap.__file__), os.path.join(self.site, "stillmap"))
        native = os.path.join(self.site, "stillmap", os.path.basename(stillmap.plugin_path()))
        if not os.path.exists(native):  # Bazel has it elsewhere
            shutil.copy(stillmap.plugin_path(), native)
        self.environment = {name: value for name, value in os.environ.items()
                            if name not in ("STILLMAP_HOSTCUDA", "RUNFILES_DIR")}
        self.environment.update(PYTHONPATH=self.site, STILLMAP_DRIVER="host")

    def test_finds_the_package_of_hostcuda(self):
        hostcuda = os.environ.get("STILLMAP_HOSTCUDA")
        if not hostcuda:
            self.skipTest("about hostcuda")
        library = os.path.join(self.site, "stillmap_hostcuda", "lib", "libcuda.so.1")
        os.makedirs(os.path.dirname(library))
        shutil.copy(hostcuda, library)
        code = "import stillmap; stillmap.device_info(); print([l for l in open('/proc/self/maps') if 'libcuda.so.1' in l][0])"
        done = subprocess.run([sys.executable, "-c", code], env=self.environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(library, done.stdout)

    def test_a_script_does_not_start_itself(self):
        shutil.rmtree(os.path.join(self.site, "stillmap", "bin"), ignore_errors=True)
        script = self.path("stillmap")
        with open(script, "w") as file:
            file.write(f"#!{sys.executable}\nimport sys\nfrom stillmap.__main__ import main\nsys.exit(main())\n")
        os.chmod(script, 0o755)
        done = subprocess.run([script, "doctor"], env={**self.environment, "PATH": self.folder}, timeout=60,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no command", done.stderr)


class SharedObject(TestCase):
    def test_exports_the_plugin_and_nothing_else(self):
        if shutil.which("nm") is None:
            self.skipTest("nm is not installed")
        lines = subprocess.run(["nm", "-D", "--defined-only", stillmap.plugin_path()], capture_output=True, text=True)
        names = {line.split()[-1] for line in lines.stdout.splitlines()}
        self.assertEqual({n for n in names if not n.startswith("stillmap_")}, {"PyInit__native"})
        self.assertIn("stillmap_try_malloc", names)

    def test_is_one_instance_with_the_plugin(self):
        self.run_python("""
            import ctypes, stillmap
            plugin = ctypes.CDLL(stillmap.plugin_path())
            plugin.stillmap_try_malloc.restype = ctypes.c_void_p
            plugin.stillmap_try_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
            block = plugin.stillmap_try_malloc(3 << 20, 0, None)
            assert block
            tag = stillmap.stats()["tags"]["caching_allocator"]
            if stillmap.device_info()["vmm"]:
                assert tag["mapped_bytes"] >= 3 << 20, tag
                stillmap.suspend("caching_allocator")
                stillmap.resume("caching_allocator")
            assert plugin.stillmap_try_malloc(1 << 60, 0, None) is None
            assert "caching_allocator::allocate" in stillmap.last_error()
        """ if stillmap.device_info()["vmm"] else "import stillmap")

    def test_lives_beside_another_copy(self):
        other = self.path("_other.so")
        shutil.copy(stillmap.plugin_path(), other)
        self.run_python("""
            import ctypes, stillmap, sys
            heap = stillmap.CachingAllocator()
            plugin = ctypes.CDLL(sys.argv[1])
            plugin.stillmap_try_malloc.restype = ctypes.c_void_p
            plugin.stillmap_try_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
            block = plugin.stillmap_try_malloc(3 << 20, 0, None)
            assert block and not heap.owns(block)
            heap.allocate(1 << 20)
        """, other)


if __name__ == "__main__":
    unittest.main()
