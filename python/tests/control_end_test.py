"""How control servers of Python programs end: closed, with the process, and in forked children; and wrong calls."""

import os
import signal
import unittest

import stillmap
from operators import ControlTestCase
from support import needs_vmm


@needs_vmm
class Ends(ControlTestCase):
    def test_close_while_memory_is_away(self):
        program = self.program("""
            server = stillmap.serve()
            tell(server.address)
            threading.Thread(target=lambda: (sys.stdin.readline(), server.close()), daemon=True).start()
            try:
                loop()
            except stillmap.BusyError as error:
                assert "weights of device 0" in str(error) and "stillmap.resume()" in str(error), error
                tell("closed", server.closed)
            again = stillmap.serve()     # it knows the tag, too
            tell(again.address)
            for _ in range(2):
                try:
                    stillmap.safe_point()
                    break
                except stillmap.BusyError:
                    sys.stdin.readline()
            step()
            tell("goes on")
        """)
        address = program.line()
        self.task("suspend", address, "weights")
        program.say()
        self.assertEqual(program.line(), "closed True")
        self.task("resume", program.line(), "weights")
        program.say()
        self.assertEqual(program.line(), "goes on")
        program.wait()

    def test_close_during_a_request(self):
        program = self.program("""
            asked = threading.Event()
            def quiesce(tags, stopped):
                asked.set()
                while not stopped(): time.sleep(0.001)
                raise RuntimeError("closing")
            server = stillmap.serve(quiesce=quiesce)
            tell(server.address)
            asked.wait()
            server.close()
            step()
            again = stillmap.serve(timeout=60)
            tell(again.address)
            sys.stdin.readline()
            again.close()
        """)
        shell = self.start_task("suspend", program.line(), "weights")
        said = shell.communicate(timeout=20)[0]
        self.assertEqual(shell.returncode, 4, said)
        self.assertIn("RuntimeError: closing", said)
        # One that waits for safe points.
        address = program.line()
        shell = self.start_task("suspend", address, "weights")
        self.until(lambda: self.job(address) is not None)
        program.say()
        said = shell.communicate(timeout=20)[0]
        self.assertEqual(shell.returncode, 1, said)
        self.assertIn("the server is being closed", said)
        program.wait()

    def test_close_in_a_callback(self):
        program = self.program("""
            def quiesce(tags, stopped): server.close()
            server = stillmap.serve(quiesce=quiesce)
            tell(server.address)
            sys.stdin.readline()
            server.close()
        """)
        address = program.line()
        self.assertIn("a callback of a control server cannot close one",
                      self.task("suspend", address, "weights", expect=4))
        program.say()
        program.wait()

    def test_a_server_needs_no_variable(self):
        program = self.program("""
            import gc
            stillmap.serve(quiesce=lambda tags, stopped: None)
            gc.collect()
            tell("@stillmap-%d.control" % os.getpid())
            sys.stdin.readline()
        """)
        address = program.line()
        self.task("suspend", address, "weights")
        self.task("resume", address, "weights")
        program.say()
        program.wait()

    def test_callbacks_do_not_keep_what_is_closed(self):
        self.run_python("""
            import gc, stillmap, weakref
            class Task:
                def quiesce(self, tags, stopped): pass
            task = Task()
            task.server = stillmap.serve(quiesce=task.quiesce)
            seen = weakref.ref(task)
            task.server.close()
            del task
            gc.collect()
            assert seen() is None
        """)

    def test_the_process_ends_while_memory_is_away(self):
        for ends in ("pass", "sys.exit(0)", "os._exit(0)"):
            program = self.program("""
                server = stillmap.serve()
                tell(server.address)
                threading.Thread(target=loop, daemon=True).start()
                sys.stdin.readline()
                ENDS
            """.replace("ENDS", ends))
            self.task("suspend", program.line(), "weights")
            program.say()
            program.wait()

    def test_the_process_ends_during_a_request(self):
        for body, seconds in (("while not stopped(): time.sleep(0.001)", 3), ("time.sleep(1000)", 12),
                              ("threading.Event().wait()", 12)):
            program = self.program("""
                asked = threading.Event()
                def quiesce(tags, stopped):
                    asked.set()
                    BODY
                server = stillmap.serve(quiesce=quiesce)
                tell(server.address)
                asked.wait()
            """.replace("BODY", body))
            shell = self.start_task("suspend", program.line(), "weights")
            program.wait(timeout=seconds)
            shell.communicate(timeout=20)

    def test_servers_in_atexit_functions(self):
        self.run_python("""
            import atexit, stillmap
            buffer = stillmap.GrowableBuffer(1, tag="weights")
            first = stillmap.serve()
            @atexit.register
            def last():
                first.close()
                stillmap.serve(quiesce=lambda tags, stopped: None)
        """)

    def test_fork(self):
        program = self.program("""
            server = stillmap.serve()
            threading.Thread(target=loop, daemon=True).start()
            tell(server.address)
            sys.stdin.readline()
            pid = os.fork()    # while the memory is away, and a thread waits
            if pid == 0:
                assert server.closed
                server.close()
                stillmap.safe_point()
                with stillmap.safe_region(): pass
                try:
                    stillmap.serve()
                except stillmap.NotSupportedError as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(1)
                sys.exit(42)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
            child = os.fork()
            if child == 0:
                os.closerange(0, 3)
                time.sleep(30)
                os._exit(0)
            tell(child)
            sys.stdin.readline()
            os._exit(0)
        """)
        address = program.line()
        self.task("suspend", address, "weights")
        program.say()
        child = int(program.line())
        self.task("resume", address, "weights")
        program.say()
        program.wait()
        self.task("status", address, expect=3)  # the address is free, although the child lives
        os.kill(child, signal.SIGKILL)

    def test_wrong_calls(self):
        with stillmap.serve() as server:
            error = self.assertRaisesSaying(stillmap.BusyError, "has a control server", stillmap.serve)
            self.assertEqual(error.subject, server.address)
            self.assertRaises(stillmap.BusyError, stillmap.serve, self.path("b.control"))
        for call in (lambda: stillmap.serve(3), lambda: stillmap.serve(quiesce=3), lambda: stillmap.serve(resume=3),
                     lambda: stillmap.serve(released=3), lambda: stillmap.serve(throttle=3),
                     lambda: stillmap.serve(timeout="1"), lambda: stillmap.serve(device="0"), stillmap.Server):
            self.assertRaises(TypeError, call)
        for call in (lambda: stillmap.serve(""), lambda: stillmap.serve(timeout=-1), lambda: stillmap.serve(device=99),
                     lambda: stillmap.serve("/" + "a" * 200)):
            self.assertRaises(stillmap.InvalidArgumentError, call)
        with self.assertRaises(FileNotFoundError):
            stillmap.serve(self.path("none") + "/a.control")
        stillmap.serve().close()  # what failed left nothing behind


if __name__ == "__main__":
    unittest.main()
