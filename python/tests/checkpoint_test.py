"""Suspend and resume by tag; snapshots, restored here and in fresh processes."""

import os
import signal
import threading
import time
import unittest

import stillmap
from support import MiB, TestCase, driver, needs_vmm

PATTERN = bytes(range(256)) * 4096


@needs_vmm
class Suspend(TestCase):
    def setUp(self):
        super().setUp()
        self.buffer = stillmap.GrowableBuffer(4 * MiB, tag="sleeps")
        self.buffer.copy_from_host(PATTERN)
        self.addCleanup(self.forget)

    def forget(self):
        if stillmap.suspended():
            stillmap.forget("sleeps")
        self.buffer.close()

    def test_contents_and_address_come_back(self):
        for options in ({}, {"store": "file"}, {"store": "file", "directory": self.folder}):
            address = self.buffer.address
            done = stillmap.suspend("sleeps", **options)
            self.assertEqual(done["nbytes"], 4 * MiB)
            self.assertGreaterEqual(done["released_bytes"], 4 * MiB)  # free pages of the pool, too
            self.assertEqual([s["tag"] for s in stillmap.suspended()], ["sleeps"])
            self.assertEqual(stillmap.stats()["tags"]["sleeps"]["suspended_bytes"], 4 * MiB)
            self.assertIn("suspended: sleeps", stillmap.memory_map().to_svg())
            stillmap.resume("sleeps")
            self.assertEqual(self.buffer.address, address)
            self.assertEqual(self.buffer.copy_to_host(MiB), PATTERN)
        self.assertEqual(stillmap.suspended(), [])

    def test_discarded(self):
        stillmap.suspend("sleeps", store="discard")
        stillmap.resume("sleeps")
        self.buffer.copy_from_host(b"usable")

    def test_forgotten(self):
        stillmap.suspend("sleeps")
        stillmap.forget("sleeps")
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.resume, "sleeps")
        self.assertEqual(stillmap.stats()["tags"]["sleeps"]["suspended_bytes"], 0)
        self.buffer.commit(0, 4 * MiB)
        self.buffer.copy_from_host(PATTERN)
        self.assertEqual(self.buffer.copy_to_host(MiB), PATTERN)

    def test_a_suspended_allocator_refuses_requests(self):
        with stillmap.CachingAllocator(tag="heap") as heap:
            block = heap.allocate(3 * MiB)
            heap.free(heap.allocate(MiB))
            stillmap.suspend("heap")
            for nbytes in (512, MiB, 64 * MiB):
                error = self.assertRaisesSaying(stillmap.BusyError, "resume its tag first", heap.allocate, nbytes)
                self.assertEqual(error.subject, "tag heap")
            heap.free(block)
            stillmap.resume("heap")
            heap.free(heap.allocate(MiB))

    def test_errors(self):
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.suspend, "no such tag")
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.resume, "sleeps")
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.suspend, "sleeps", device=99)
        error = self.assertRaisesSaying(ValueError, "tape", stillmap.suspend, "sleeps", store="tape")
        self.assertEqual(error.subject, "tape")
        self.assertRaises(FileNotFoundError, stillmap.suspend, "sleeps", store="file", directory="/no/folder")
        self.assertRaises(TypeError, stillmap.suspend, 3)
        self.assertRaises(TypeError, stillmap.suspend, "sleeps", directory=3)
        self.assertEqual(self.buffer.copy_to_host(MiB), PATTERN)
        stillmap.suspend("sleeps")
        self.assertRaises(stillmap.BusyError, stillmap.suspend, "sleeps")

    def test_no_memory_to_wake_up_in(self):
        self.run_python("""
            import stillmap
            keep = stillmap.GrowableBuffer(40 << 20, tag="keep")
            keep.copy_from_host(b"kept")
            stillmap.suspend("keep")
            other = stillmap.GrowableBuffer(50 << 20)
            try:
                stillmap.resume("keep")
            except stillmap.OutOfMemoryError as error:
                assert error.value, error
            else:
                raise SystemExit("it had no room")
            assert [s["tag"] for s in stillmap.suspended()] == ["keep"]
            other.close()
            stillmap.resume("keep")
            assert keep.copy_to_host(4) == b"kept"
        """, HOSTCUDA="memory=64M")


@needs_vmm
class Snapshot(TestCase):
    def setUp(self):
        super().setUp()
        self.file = self.path("image.smi")
        self.heap = stillmap.CachingAllocator(tag="saved", hint=0x200000000000)
        self.addCleanup(self.heap.close)
        self.block = self.heap.allocate(6 * MiB)
        driver().write(self.block, PATTERN)

    def test_restored_here(self):
        done = stillmap.snapshot(self.file, "saved", notes={"step": b"7\0"})
        self.assertEqual(done["contents_bytes"], 6 * MiB)
        self.heap.close()
        with stillmap.restore(self.file) as restored:
            self.assertEqual(restored.notes, {"step": b"7\0"})
            self.assertEqual([b["tag"] for b in restored.blocks], ["saved"])
            self.assertEqual(driver().read(self.block, MiB), PATTERN)
            self.assertEqual(stillmap.stats()["tags"]["saved"]["mapped_bytes"], 6 * MiB)
            self.assertRaises(stillmap.BusyError, stillmap.restore, self.file)
        self.assertRaisesSaying(stillmap.InvalidArgumentError, "close", lambda: restored.blocks)
        self.assertNotIn("saved", stillmap.stats()["tags"])

    FRESH = """
        import ctypes, sys, stillmap
        restored = stillmap.restore(sys.argv[1])
        address = int(sys.argv[2])
        assert any(b["address"] <= address < b["address"] + b["nbytes"] for b in restored.blocks)
        driver, room = ctypes.CDLL(stillmap.device_info()["driver_path"]), ctypes.create_string_buffer(1 << 20)
        context = ctypes.c_void_p()
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        driver.cuCtxSetCurrent(context)
        assert driver.cuMemcpyDtoH_v2(room, ctypes.c_uint64(address), ctypes.c_size_t(1 << 20)) == 0
        assert room.raw == bytes(range(256)) * 4096
    """

    def test_restored_in_a_fresh_process(self):
        self.run_python("""
            import stillmap, sys
            buffer = stillmap.GrowableBuffer(6 << 20, tag="saved", reserve=1 << 30, hint=0x300000000000)
            assert buffer.address == 0x300000000000
            buffer.copy_from_host(bytes(range(256)) * 4096)
            stillmap.snapshot(sys.argv[1], "saved")
            open(sys.argv[1] + ".address", "w").write(str(buffer.address))
        """, self.file)
        with open(self.file + ".address") as file:
            address = file.read()
        self.run_python(self.FRESH, self.file, address)

    def test_two_processes(self):
        stillmap.snapshot(self.file, "saved")
        self.heap.close()
        threads, failures = [], []

        def one():
            try:
                self.run_python(self.FRESH, self.file, self.block)
            except BaseException as failure:  # noqa: B902
                failures.append(failure)

        for _ in range(2):
            threads.append(threading.Thread(target=one))
            threads[-1].start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_increments_and_compression(self):
        stillmap.snapshot(self.file, ["saved"])
        driver().write(self.block + 4 * MiB, b"changed")
        child = self.path("child.smi")
        done = stillmap.snapshot(child, ["saved"], parent=self.file, compression="zstd")
        self.assertGreaterEqual(done["parent_chunks"], 1)
        self.assertLess(done["stored_bytes"], MiB)
        self.heap.close()
        with stillmap.restore(child):
            self.assertEqual(driver().read(self.block + 4 * MiB, 7), b"changed")
            self.assertEqual(driver().read(self.block, MiB), PATTERN)

    def test_elsewhere(self):
        stillmap.snapshot(self.file, "saved")
        with stillmap.restore(self.file, relocate=True) as restored:
            place, = restored.blocks
            self.assertNotEqual(place["address"], place["original_address"])
            moved = self.block - place["original_address"] + place["address"]
            self.assertEqual(driver().read(moved, MiB), PATTERN)

    def test_memory_with_a_counted_view_is_not_released(self):
        stillmap.snapshot(self.file, "saved")
        restored = stillmap.restore(self.file, relocate=True)
        place, = restored.blocks
        view = restored._hold()  # what a tensor of stillmap.torch.restore() keeps
        error = self.assertRaisesSaying(stillmap.BusyError, "views", restored.close)
        self.assertEqual((error.operation, error.value), ("Restored.close", 1))
        with self.assertRaises(stillmap.BusyError), restored:
            pass
        del restored
        moved = self.block - place["original_address"] + place["address"]
        self.assertEqual(driver().read(moved, MiB), PATTERN)
        del view
        restored = stillmap.restore(self.file, relocate=True)
        restored.close()
        self.assertRaisesSaying(stillmap.InvalidArgumentError, "released", restored._hold)

    def test_progress(self):
        seen = []
        stillmap.snapshot(self.file, "saved", progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(seen[-1], (6 * MiB, 6 * MiB))
        self.assertEqual(seen, sorted(seen))
        self.heap.close()
        seen.clear()
        stillmap.restore(self.file, progress=lambda *figures: seen.append(figures)).close()
        self.assertEqual(seen[-1], (6 * MiB, 6 * MiB))
        stillmap.restore(self.file, progress=True).close()

    def test_an_exception_of_the_callback_cancels(self):
        self.assertRaises(ZeroDivisionError, stillmap.snapshot, self.file, "saved", progress=lambda d, t: 1 / 0)
        self.assertEqual(os.listdir(self.folder), [])
        stillmap.snapshot(self.file, "saved")
        self.heap.close()
        self.assertRaises(ZeroDivisionError, stillmap.restore, self.file, progress=lambda d, t: 1 / 0)
        self.assertNotIn("saved", stillmap.stats()["tags"])
        self.assertRaises(TypeError, stillmap.restore, self.file, progress=3)
        stillmap.restore(self.file).close()

    def test_control_c_cancels(self):
        def slow(done, total):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

        # A process that a script starts in the background ignores the signal.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        self.assertRaises(KeyboardInterrupt, stillmap.snapshot, self.file, "saved", progress=slow)
        self.assertEqual(os.listdir(self.folder), [])

    def test_errors(self):
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.snapshot, self.file, "no such tag")
        self.assertRaises(FileNotFoundError, stillmap.snapshot, self.path("no/folder.smi"), "saved")
        self.assertRaises(FileNotFoundError, stillmap.snapshot, self.file, "saved", parent=self.path("none"))
        self.assertRaises(TypeError, stillmap.snapshot, 3, "saved")
        self.assertRaises(TypeError, stillmap.snapshot, self.file, None)
        self.assertRaises(TypeError, stillmap.snapshot, self.file, [1])
        self.assertRaises(TypeError, stillmap.snapshot, self.file, "saved", notes={"a": "text"})
        self.assertRaises(ValueError, stillmap.snapshot, self.file, "saved", compression="rar")
        self.assertEqual(os.listdir(self.folder), [])
        stillmap.snapshot(self.file, "saved")
        self.assertRaises(FileExistsError, stillmap.snapshot, self.file, "saved")
        stillmap.snapshot(self.file, "saved", replace=True)
        self.heap.close()
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.restore, self.file, tags=["other"])
        error = self.assertRaisesSaying(FileNotFoundError, "none", stillmap.restore, self.path("none"))
        self.assertEqual(error.filename, self.path("none"))

    def test_a_parent_is_replaced_by_force_only(self):
        child = self.path("child.smi")
        stillmap.snapshot(self.file, "saved")
        stillmap.snapshot(child, "saved", parent=self.file)
        self.assertRaisesSaying(stillmap.BusyError, "child.smi", stillmap.snapshot, self.file, "saved", replace=True)
        stillmap.snapshot(self.file, "saved", replace=True, force=True)
        self.heap.close()
        self.assertRaises(FileNotFoundError, stillmap.restore, child)

    def test_names_that_are_no_utf_8_come_back(self):
        notes = {"no \udcff\udcc0 UTF-8": b"1", "gr\u00fc\u00df": b"2"}
        stillmap.snapshot(self.file, "saved", notes=notes)
        self.heap.close()
        self.assertRaisesSaying(stillmap.InvalidArgumentError, "\udcff", stillmap.restore, self.file, tags=["\udcff"])
        with stillmap.restore(self.file) as memory:
            self.assertEqual(memory.notes, notes)

    def test_a_damaged_image(self):
        stillmap.snapshot(self.file, "saved")
        self.heap.close()
        with open(self.file, "r+b") as file:
            file.seek(-5000, os.SEEK_END)
            byte = file.read(1)
            file.seek(-5000, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        self.assertRaisesSaying(stillmap.CorruptError, self.file, stillmap.restore, self.file)
        self.assertNotIn("saved", stillmap.stats()["tags"])


class Without(TestCase):
    def test_a_device_that_cannot(self):
        if stillmap.device_info()["vmm"]:
            self.skipTest("the device has virtual memory management")
        with stillmap.CachingAllocator(tag="fixed") as heap:
            heap.allocate(MiB)
            self.assertRaises(stillmap.Error, stillmap.suspend, "fixed")
            self.assertRaises(stillmap.Error, stillmap.snapshot, self.path("x"), "fixed")


if __name__ == "__main__":
    unittest.main()
