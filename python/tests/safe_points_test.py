"""Where the threads of a program let a control server have their memory."""

import os
import queue
import signal
import time
import unittest

from operators import ControlTestCase
from support import needs_vmm


@needs_vmm
class SafePoints(ControlTestCase):
    def test_a_program_without_one_refuses_and_goes_on(self):
        program = self.program("""
            server = stillmap.serve(timeout=0.2)
            tell(server.address)
            sys.stdin.readline()
            stillmap.safe_point()
            sys.stdin.readline()
            step(); step()
        """)
        address = program.line()
        for request in (["suspend", "--all"], ["snapshot", "--all", "-o", self.path("a.smi")]):
            said = self.task(request[0], address, *request[1:], expect=4)
            self.assertIn("no thread of the program has passed a safe point", said)
            self.assertIn("200 ms", said)
        program.say()
        self.until(lambda: "0 of 1 threads" in self.task("suspend", address, "weights", expect=4))
        self.assertFalse(os.path.exists(self.path("a.smi")))
        self.assertEqual(self.suspended_bytes(address), 0)
        program.say()
        program.wait()

    def test_every_thread_that_has_one_is_waited_for(self):
        program = self.program("""
            server = stillmap.serve(timeout=0.3)
            tell(server.address)
            going = threading.Event()
            other = threading.Thread(target=lambda: (stillmap.safe_point(), going.wait()))
            other.start()
            threading.Thread(target=loop, daemon=True).start()
            sys.stdin.readline()
            going.set(); other.join()
            tell("ended")
            with stillmap.safe_region():
                tell("in a region")
                sys.stdin.readline()
            tell("out of it")
        """)
        address = program.line()
        self.until(lambda: "1 of 2 threads" in self.task("suspend", address, "weights", expect=4))
        program.say()
        self.assertEqual(program.line(), "ended")  # a thread that has ended is not waited for
        self.assertEqual(program.line(), "in a region")
        self.task("suspend", address, "weights")
        program.say()  # the region ends, and its thread waits
        self.assertRaises(queue.Empty, program.lines.get, timeout=0.3)
        self.task("resume", address, "weights")
        self.assertEqual(program.line(), "out of it")
        program.wait()

    def test_a_region_within_a_region_and_an_exception(self):
        self.run_python("""
            import stillmap
            for _ in range(3):
                try:
                    with stillmap.safe_region():
                        with stillmap.safe_region():
                            stillmap.safe_point()
                        1 / 0
                except ZeroDivisionError:
                    pass
            stillmap.safe_point()
            region = stillmap.safe_region()
            region.__enter__()
            for wrong in (region.__enter__, stillmap.safe_region().__exit__):
                try: wrong()
                except stillmap.InvalidArgumentError as error: assert error.operation == "stillmap.safe_region", error
                else: raise SystemExit("no error")
            errors = []
            def leave():
                try: region.__exit__()
                except stillmap.InvalidArgumentError as error: errors.append(error)
            import threading
            other = threading.Thread(target=leave)
            other.start(); other.join()
            assert "this thread" in str(errors[0])
            region.__exit__()
        """)

    def test_the_program_itself_resumes(self):
        for call in ("resume", "forget"):
            program = self.program("""
                server = stillmap.serve()
                tell(server.address)
                passed = 0
                def spin():
                    global passed
                    while True:
                        stillmap.safe_point()
                        passed += 1
                threading.Thread(target=spin, daemon=True).start()
                sys.stdin.readline()
                before = passed
                time.sleep(0.1)
                assert passed == before
                stillmap.%s("weights")
                while passed == before: time.sleep(0.001)
                tell("goes on")
            """ % call)
            address = program.line()
            self.task("suspend", address, "weights")
            program.say()
            self.assertEqual(program.line(), "goes on")
            program.wait()

    def test_an_own_suspension_stops_nothing(self):
        self.run_python("""
            import stillmap
            b = stillmap.GrowableBuffer(1 << 20, tag="weights")
            server = stillmap.serve()
            stillmap.suspend("weights")
            stillmap.safe_point()
            stillmap.resume("weights")
        """)

    def test_ctrl_c_while_memory_is_away(self):
        program = self.program("""
            server = stillmap.serve()
            tell(server.address)
            try:
                loop()
            except KeyboardInterrupt:
                assert stillmap.suspended()[0]["tag"] == "weights"
                tell("interrupted")
            try:
                stillmap.safe_point()   # the memory is still away
            except KeyboardInterrupt:
                tell("again")
            stillmap.resume("weights")
            step()
            loop(until=lambda: steps > 100)
            tell("goes on")
        """)
        address = program.line()
        self.task("suspend", address, "weights")
        for said in ("interrupted", "again"):
            time.sleep(0.2)
            program.process.send_signal(signal.SIGINT)
            self.assertEqual(program.line(5), said)
        self.assertEqual(program.line(), "goes on")
        program.wait()

    def test_ctrl_c_while_a_snapshot_is_written_cancels_it_first(self):
        # The snapshot waits for queued work, which ends later.
        program = self.program("""
            import ctypes
            server = stillmap.serve()
            driver, context = ctypes.CDLL(stillmap.device_info()["driver_path"]), ctypes.c_void_p()
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
            driver.cuCtxSetCurrent(context)
            driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
            usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
            step()
            driver.cuLaunchHostFunc(None, usleep, 900_000)
            tell(server.address)
            try:
                while True: stillmap.safe_point()
            except KeyboardInterrupt:
                ended = time.monotonic()
            tell(stillmap._native._safe_point_requests())
            step()
            sys.stdin.readline()
        """)
        address = program.line()
        shell = self.start_task("snapshot", address, "--all", "-o", self.path("a.smi"))
        self.until(lambda: self.job(address) is not None)
        time.sleep(0.1)
        program.process.send_signal(signal.SIGINT)
        self.assertEqual(program.line(), "[]")
        self.assertIsNone(self.job(address))
        said = shell.communicate(timeout=20)[0]
        self.assertEqual(shell.returncode, 1, said)
        self.assertIn("cancel", said)
        self.assertFalse(os.path.exists(self.path("a.smi")))
        program.say()
        program.wait()

    def test_other_signals_do_not_end_the_wait(self):
        program = self.program("""
            seen = []
            signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
            server = stillmap.serve()
            tell(server.address)
            loop(until=lambda: bool(seen))
            tell("ends")
        """)
        address = program.line()
        self.task("suspend", address, "weights")
        program.process.send_signal(signal.SIGUSR1)
        self.assertRaises(queue.Empty, program.lines.get, timeout=0.3)
        self.task("resume", address, "weights")
        self.assertEqual(program.line(), "ends")
        program.wait()

    def test_it_costs_little(self):
        said = self.run_python("""
            import stillmap, time
            server = stillmap.serve()
            buffer = stillmap.GrowableBuffer(1, tag="weights")
            point, n = stillmap.safe_point, 200_000
            best = 1
            for _ in range(5):
                t = time.perf_counter()
                for _ in range(n): point()
                best = min(best, (time.perf_counter() - t) / n)
            print(best)
        """)
        print("\nsafe_point() takes %.0f ns" % (float(said) * 1e9))
        self.assertLess(float(said), 2e-6)


if __name__ == "__main__":
    unittest.main()
