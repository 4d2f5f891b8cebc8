"""The control server of a Python program, asked by the command in processes of its own."""

import os
import subprocess
import time
import unittest

import stillmap
from operators import ControlTestCase
from stillmap.__main__ import find_command
from support import MiB, device, needs_vmm


@needs_vmm
class FromAShell(ControlTestCase):
    def test_list_status_suspend_resume_and_snapshot(self):
        machine = self.one_machine()
        program = self.program("""
            server = stillmap.serve()
            tell(server.address, free())
            stopping = threading.Event()
            threading.Thread(target=lambda: (sys.stdin.readline(), stopping.set()), daemon=True).start()
            loop(until=stopping.is_set)
            tell(steps, weights.address)
        """, HOSTCUDA=machine)
        address, free = program.line().split()
        self.assertEqual(address, "@stillmap-%d.control" % program.pid)
        found = [t for t in self.task("list")["tasks"] if t["pid"] == program.pid]
        self.assertEqual([(t["socket"], t["tags"][0]["tag"], t["tags"][0]["mapped_bytes"]) for t in found],
                         [(address, "weights", 8 * MiB)])
        for where in ("pinned", "file"):
            self.task("suspend", address, "weights", "--to", where)
            tags = self.task("status", address)["tags"]
            self.assertEqual([(t["mapped_bytes"], t["suspended_bytes"]) for t in tags], [(0, 8 * MiB)])
            # The driver says so in another process.
            said = self.run_python("import stillmap; print(stillmap.device_info()['free_bytes'])", HOSTCUDA=machine)
            self.assertGreaterEqual(int(said), int(free) + 8 * MiB)
            self.task("resume", address, "weights")
            image = self.path(where + ".smi")
            self.task("snapshot", address, "--all", "-o", image)
            said = self.run_python("""
                import sys, stillmap
                with stillmap.restore(sys.argv[1]) as restored:
                    block, = restored.blocks
                    print(hex(block["address"]), block["mapped_bytes"])
            """, image)
            self.assertEqual(said.split(), ["0x330000000000", str(8 * MiB)])
        program.say()
        steps, place = program.line().split()
        self.assertGreater(int(steps), 0)
        self.assertEqual(int(place), 0x3300_0000_0000)
        program.wait()

    def test_the_operator_sees_what_the_allocators_have(self):
        quota = "operator-%d" % os.getpid()
        program = self.program("""
            a = stillmap.CachingAllocator(limit=64 << 20, share=os.environ["QUOTA"])
            live = [a.allocate(3 << 20)]
            a.free(a.allocate(16 << 20))
            server = stillmap.serve()
            tell(server.address)
            sys.stdin.readline()
            b = stillmap.CachingAllocator(tag="b")
            live.append(b.allocate(5 << 20))
            tell("allocated")
            sys.stdin.readline()
            a.free(live[0])
            a.close()
            tell("closed")
            sys.stdin.readline()
        """, QUOTA=quota)
        address = program.line()
        one = self.task("status", address)["allocator"]
        self.assertEqual((one["live_bytes"], one["limit_bytes"], one["quota"]), (3 * MiB, 64 * MiB, quota))
        self.assertGreaterEqual(one["cached_bytes"], 16 * MiB)
        program.say()
        program.line()
        both = self.task("status", address)["allocator"]
        self.assertEqual((both["live_bytes"], both["limit_bytes"]), (8 * MiB, None))
        program.say()
        program.line()
        other = self.task("status", address)["allocator"]
        self.assertEqual((other["live_bytes"], other["limit_bytes"], other["quota"]), (5 * MiB, None, ""))
        program.say()
        program.wait()
        stillmap.SharedQuota.remove(quota)

    def test_nothing_runs_while_memory_is_away(self):
        program = self.program("""
            server = stillmap.serve()
            tell(server.address)
            threading.Thread(target=loop, daemon=True).start()
            for _ in sys.stdin:
                tell(steps)
        """)
        address = program.line()
        self.task("suspend", address, "--all")
        counts = []
        for _ in range(2):
            program.say()
            counts.append(int(program.line()))
            time.sleep(0.2)
        self.assertEqual(counts[0], counts[1])
        self.task("resume", address, "--all")
        program.say()
        self.until(lambda: (program.say(), int(program.line()) > counts[0])[1])

    def test_addresses(self):
        program = self.program("""
            path, folder = sys.stdin.readline().strip(), sys.stdin.readline().strip()
            for address in (path, "@stillmap-python-%d.control" % os.getpid(), folder, folder + "/"):
                with stillmap.serve(address) as server:
                    assert not server.closed and server.device == 0 and server.address in repr(server)
                    tell(server.address)
                    sys.stdin.readline()
                assert server.closed and "closed" in repr(server)
                server.close()
            tell(os.listdir(folder))
        """)
        program.say(self.path("a.control"))
        program.say(self.folder)
        own = os.path.join(self.folder, "stillmap-%d.control" % program.pid)
        for expected in (self.path("a.control"), "@stillmap-python-%d.control" % program.pid, own, own):
            self.assertEqual(program.line(), expected)
            self.assertEqual(self.task("status", expected)["pid"], program.pid)
            if expected.startswith("/"):
                self.assertEqual([t["pid"] for t in self.task("list", self.folder)["tasks"]
                                  if t["socket"] == expected], [program.pid])
            program.say()
        # Lock files of sockets stay, as those of other servers.
        self.assertNotIn("control'", program.line().replace(".control.lock", ""))
        program.wait()

    def test_a_name_that_is_taken_is_not_waited_for(self):
        # Containers that share a network may have processes with the same id.
        self.run_python("""
            import os, socket, stillmap
            taken = socket.socket(socket.AF_UNIX)
            taken.bind(chr(0) + "stillmap-%d.control" % os.getpid())
            taken.listen()
            with stillmap.serve() as server:
                assert server.address == "@stillmap-%d-2.control" % os.getpid(), server.address
            try:
                stillmap.serve("@stillmap-%d.control" % os.getpid())
            except stillmap.BusyError as error:
                assert "in use" in str(error) and error.operation == "stillmap.serve", error
            stillmap.serve().close()
        """)

    def test_servers_of_two_devices(self):
        if stillmap.device_count() < 2:
            self.skipTest("one device")
        program = self.program("""
            other = stillmap.GrowableBuffer(4 * MiB, tag="other", device=1)
            servers = [stillmap.serve(), stillmap.serve(device=1)]
            tell(*[s.address for s in servers])
            threading.Thread(target=loop, daemon=True).start()
            sys.stdin.readline()
            tell(steps)
        """)
        first, second = program.line().split()
        self.assertEqual(second, "@stillmap-%d.1.control" % program.pid)
        # The loop waits for both, wherever it was stopped first.
        for address, nbytes in ((first, 8 * MiB), (second, 4 * MiB)):
            self.task("suspend", address, "--all")
            self.assertEqual(self.suspended_bytes(address), nbytes)
        for address in (first, second):
            self.task("resume", address, "--all")
        self.assertEqual(self.task("list")["tasks"] and {
            t["socket"] for t in self.task("list")["tasks"] if t["pid"] == program.pid}, {first, second})
        program.say()
        program.line()
        program.wait()


@needs_vmm
class Failures(ControlTestCase):
    @unittest.skipUnless(device()["hostcuda"], "needs a driver that can be told to fail")
    def test_the_program_goes_on_whatever_driver_call_of_a_request_fails(self):
        from fault_sweep import UNKNOWN, Hostcuda
        contents = bytes(range(251)) * 20_000
        buffer = stillmap.GrowableBuffer(len(contents), tag="weights")
        self.addCleanup(buffer.close)
        buffer.copy_from_host(contents)
        server = stillmap.serve()
        self.addCleanup(server.close)
        cuda, failed = Hostcuda(), 0
        requests = {"suspend": ["suspend", server.address, "weights"], "resume": ["resume", server.address, "weights"],
                    "snapshot": ["snapshot", server.address, "--all", "-o", self.path("a.smi"), "--replace"]}

        def operate(name, call=None, nth=0):
            """Whether the request succeeds, and whether the call failed."""
            with stillmap.safe_region():
                if name == "resume":
                    stillmap.suspend("weights")
                if call:
                    cuda.fail(call, nth, UNKNOWN)
                done = subprocess.run([find_command(), "task", *requests[name]], capture_output=True, text=True)
                fired = call and cuda.stop_failing(call)
                if stillmap.suspended():
                    stillmap.resume("weights")
            return done.returncode == 0, fired

        for name in requests:
            before = cuda.calls()
            self.assertEqual(operate(name), (True, None))
            calls = cuda.calls() - before
            for call, times in sorted(calls.items()):
                for nth in {1, times}:
                    with self.subTest(name, call=call, nth=nth):
                        done, fired = operate(name, call, nth)
                        failed += fired and not done
                        stillmap.safe_point()
                        self.assertEqual(buffer.copy_to_host(), contents)
        self.assertGreater(failed, 10)


@needs_vmm
class Callbacks(ControlTestCase):
    def test_they_are_called_in_order(self):
        program = self.program("""
            calls = []
            def quiesce(tags, stopped):
                assert not stopped()
                calls.append(("quiesce", tags))
            server = stillmap.serve(quiesce=quiesce, resume=lambda tags: calls.append(("resume", tags)))
            step()
            tell(server.address)
            sys.stdin.readline()
            step()
            tell(calls)
        """)
        address = program.line()
        self.task("suspend", address, "weights")
        self.task("resume", address, "weights")
        self.task("snapshot", address, "--all", "-o", self.path("a.smi"))
        program.say()
        pair = [("quiesce", ("weights",)), ("resume", ("weights",))]
        self.assertEqual(program.line(), str(pair * 2))
        program.wait()

    def test_quiesce_refuses(self):
        program = self.program("""
            answers = iter([ValueError("not in this phase"), False, stillmap.NotSupportedError("never"), SystemExit(3), None])
            def quiesce(tags, stopped):
                answer = next(answers)
                if isinstance(answer, BaseException): raise answer
                return answer
            server = stillmap.serve(quiesce=quiesce)
            step()
            tell(server.address)
            sys.stdin.readline()
            step()
        """)
        address = program.line()
        for text, status in (("ValueError: not in this phase", 4), ("returned False", 4),
                             ("NotSupportedError: never", 5), ("SystemExit: 3", 4)):
            self.assertIn(text, self.task("suspend", address, "weights", expect=status))
            self.assertEqual(self.suspended_bytes(address), 0)
        self.task("suspend", address, "weights")
        self.task("resume", address, "weights")
        program.say()
        program.wait()

    def test_other_exceptions_are_reported(self):
        program = self.program("""
            seen = []
            sys.unraisablehook = lambda u: seen.append((type(u.exc_value).__name__, str(u.exc_value), u.object is resume))
            def resume(tags): raise ValueError("no")
            server = stillmap.serve(quiesce=lambda tags, stopped: None, resume=resume)
            tell(server.address)
            sys.stdin.readline()
            tell(seen)
        """)
        address = program.line()
        self.task("suspend", address, "weights")
        self.task("resume", address, "weights")
        program.say()
        self.assertEqual(program.line(), "[('ValueError', 'no', True)]")
        program.wait()

    def test_they_need_python_threads_to_go_on(self):
        # The function waits for a loop that needs the GIL, which waits for the function.
        program = self.program("""
            changed = threading.Condition()
            wanted = parked = False
            def quiesce(tags, stopped):
                global wanted
                with changed:
                    wanted = True
                    return changed.wait_for(lambda: parked, 10)
            def resume(tags):
                global wanted
                with changed:
                    wanted = False
                    changed.notify_all()
            def work():
                global parked
                while True:
                    step()
                    with changed:
                        parked = wanted
                        changed.notify_all()
                        changed.wait_for(lambda: not wanted)
                        parked = False
            server = stillmap.serve(quiesce=quiesce, resume=resume)
            threading.Thread(target=work, daemon=True).start()
            tell(server.address)
            sys.stdin.readline()
        """)
        address = program.line()
        for _ in range(5):
            self.task("suspend", address, "weights")
            self.task("resume", address, "weights")
        program.say()
        program.wait()

    def test_memory_is_given_away_only_where_the_program_knows(self):
        if not device()["posix_fd_export"]:
            self.skipTest("pages cannot be exported")
        begin = """
            movable = stillmap.GrowableBuffer(4 * MiB, tag="movable", exportable=True, hint=0x3400_0000_0000)
        """
        program = self.program(begin + """
            server = stillmap.serve()
            tell(server.address)
            loop()
        """)
        said = self.task("handoff", "send", program.line(), "--tag", "movable", "--to", "@nobody", expect=5)
        self.assertIn("the program has no function `released`", said)
        machine = self.one_machine()
        program = self.program(begin + """
            seen = threading.Event()
            server = stillmap.serve(released=lambda tags: (tell("released", *tags), seen.set()))
            tell(server.address)
            loop(until=seen.is_set)
            tell(stillmap.stats()["tags"]["movable"]["mapped_bytes"])
        """, HOSTCUDA=machine)
        address = program.line()
        receiver = self.path("receiver.control")
        holding = subprocess.Popen([find_command(), "task", "handoff", "receive", receiver], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "HOSTCUDA": machine})
        self.addCleanup(holding.communicate)
        self.addCleanup(holding.kill)
        self.task("handoff", "send", address, "--tag", "movable", "--to", receiver)
        self.assertEqual(program.line(), "released movable")
        self.assertEqual(program.line(), "0")
        program.wait()


if __name__ == "__main__":
    unittest.main()
