"""SharedQuota, and allocators that take part in one: memory that processes give each other."""

import ctypes
import gc
import multiprocessing
import os
import sys
import textwrap
import threading
import time
import unittest
import weakref

import stillmap
from support import MiB, TestCase, driver, needs_vmm

spawn = multiprocessing.get_context("spawn")


def give_cached_memory(connection, share, limit, keep):
    """A process that has used memory, and keeps `keep` bytes of it in its cache. Ends when it is told to."""
    heap = stillmap.CachingAllocator(share=share, share_limit=limit or None)
    heap.free(heap.allocate(keep))
    connection.send(heap.stats()["total"]["committed"])
    while connection.recv() != "end":
        connection.send((heap.stats()["total"]["committed"], stillmap.device_info()["free_bytes"]))
    heap.close()


def hold(connection, name, nbytes):
    """A process that has reserved memory, and gives nothing."""
    quota = stillmap.SharedQuota(name)
    quota.reserve(nbytes)
    connection.send(os.getpid())
    connection.recv()


def evict(connection, name, nbytes):
    """A process with contents that it can drop, without a thread: it polls."""
    quota = stillmap.SharedQuota(name)
    quota.reserve(nbytes)

    def drop(wanted):
        quota.release(min(wanted, nbytes))
        return min(wanted, nbytes)

    with quota.add_reclaimer("task", drop):
        connection.send(os.getpid())
        given = 0
        while not given:
            given = quota.poll()
            time.sleep(0.01)
        connection.send(given)
        connection.recv()


class QuotaTestCase(TestCase):
    def setUp(self):
        super().setUp()
        self.name = self.path("quota")

    def quota(self, *arguments, **options):
        made = stillmap.SharedQuota(self.name, *arguments, **options)
        self.addCleanup(made.close)
        return made

    def start(self, function, *arguments):
        """A process with a connection to it, and what it has sent first."""
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=function, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()

        def end():
            process.join(20)
            self.assertEqual(process.exitcode, 0)

        self.addCleanup(end)
        self.addCleanup(ours.close)
        self.addCleanup(ours.send, "end")
        self.assertTrue(ours.poll(20), "the process does not answer")
        return ours, ours.recv()


class Interface(QuotaTestCase):
    def test_reserve_and_release(self):
        quota = self.quota(100)
        quota.reserve(60)
        error = self.assertRaisesSaying(stillmap.OutOfMemoryError, "limit", quota.reserve, 50)
        self.assertEqual((error.value, error.limit, error.unit), (50, 40, "bytes"))
        quota.release(60)
        error = self.assertRaisesSaying(stillmap.InvalidArgumentError, "reservation", quota.release, 1)
        self.assertEqual(error.subject, self.name)
        self.assertEqual(quota.stats()["own"], 0)

    def test_statistics(self):
        quota = self.quota(100, minimum=10, maximum=50, priority=-3)
        other = self.quota()
        quota.reserve(7)
        s = quota.stats()
        self.assertEqual((s["limit"], s["reserved"], s["own"], s["device_bytes"], s["outside"]), (100, 7, 7, 0, 0))
        mine, others = s["participants"]
        self.assertEqual(mine, {"process": os.getpid(), "reserved": 7, "minimum": 10, "maximum": 50, "priority": -3,
                                "offers": [], "listens": False, "waiting": 0})
        self.assertIsNone(others["maximum"])
        self.assertEqual(s["waits"]["granted"], 0)
        self.assertEqual(s["waits"]["given"], {"cached": 0, "evictable": 0, "task": 0})
        of = stillmap.SharedQuota.stats_of(self.name)
        self.assertEqual(of, {k: v for k, v in s.items() if k not in ("own", "waits")})
        other.close()
        self.assertEqual(len(quota.stats()["participants"]), 1)

    def test_limit_and_terms(self):
        quota = self.quota(100)
        quota.reserve(80)
        revision = quota.stats()["revision"]
        self.assertEqual(quota.set_limit(50), "deferred")
        self.assertEqual(stillmap.SharedQuota.set_limit_of(self.name, 90), "applied")
        self.assertRaisesSaying(stillmap.BusyError, "revision", quota.set_limit, 80, revision)
        self.assertRaises(stillmap.InvalidArgumentError, quota.set_limit, 0)
        self.assertEqual(stillmap.SharedQuota.set_terms(self.name, os.getpid(), maximum=40, priority=2), "deferred")
        terms = quota.stats()["participants"][0]
        self.assertEqual((terms["minimum"], terms["maximum"], terms["priority"]), (0, 40, 2))
        self.assertRaisesSaying(stillmap.OutOfMemoryError, "maximum", quota.room(10).__enter__)
        self.assertRaises(stillmap.InvalidArgumentError, stillmap.SharedQuota.set_terms, self.name, 1)

    def test_events(self):
        quota = self.quota(100)
        quota.set_limit(50)
        events = stillmap.SharedQuota.events_of(self.name)
        self.assertEqual([e["action"] for e in events], ["joined", "limit"])
        self.assertEqual([e["number"] for e in events], [events[0]["number"], events[0]["number"] + 1])
        self.assertLess(abs(events[0]["time"] - time.time()), 60)
        self.assertEqual((events[1]["process"], events[1]["other"], events[1]["kind"], events[1]["bytes"]),
                         (os.getpid(), None, None, 50))

    def test_wrong_arguments(self):
        quota = self.quota(100)
        for call in (lambda: self.quota("1"), lambda: self.quota(-1), lambda: self.quota(minimum=-1),
                     lambda: quota.reserve(-1), lambda: quota.reserve(1.5), lambda: quota.add_reclaimer("cached", 3),
                     lambda: quota.add_reclaimer(3, len), lambda: quota.room("1"), lambda: self.quota(timeout="1"),
                     lambda: stillmap.CachingAllocator(quota=3), lambda: stillmap.CachingAllocator(share=3)):
            self.assertRaises(TypeError, call)
        for call in (lambda: self.quota(99), lambda: self.quota(timeout=-1), lambda: self.quota(timeout=float("nan")),
                     lambda: self.quota(minimum=2, maximum=1), lambda: quota.add_reclaimer("all", len),
                     lambda: stillmap.SharedQuota(""), lambda: stillmap.SharedQuota(self.path("another")),
                     lambda: self.quota(device=99), lambda: stillmap.CachingAllocator(quota=quota, share="x"),
                     lambda: stillmap.CachingAllocator(share_limit=3),
                     lambda: stillmap.CachingAllocator(share="x", share_limit=0)):
            self.assertRaises(stillmap.InvalidArgumentError, call)
        with self.assertRaises(FileNotFoundError) as raised:
            stillmap.SharedQuota.stats_of(self.path("none"))
        self.assertEqual(raised.exception.filename, self.path("none"))
        with open(self.path("text"), "w") as file:
            file.write("text")
        self.assertRaises(stillmap.CorruptError, stillmap.SharedQuota, self.path("text"))

    def test_close(self):
        quota = self.quota(100)
        with quota as same:
            self.assertIs(same, quota)
        self.assertTrue(quota.closed)
        self.assertIn("closed", repr(quota))
        for call in (lambda: quota.reserve(1), lambda: quota.release(1), lambda: quota.room(1), quota.poll, quota.stats,
                     quota.start_thread, lambda: quota.set_limit(1), lambda: quota.add_reclaimer("cached", len),
                     lambda: stillmap.CachingAllocator(quota=quota)):
            self.assertRaisesSaying(stillmap.InvalidArgumentError, "closed", call)
        self.assertEqual(stillmap.SharedQuota.stats_of(self.name)["participants"], [])
        stillmap.SharedQuota.remove(self.name)
        self.assertFalse(os.path.exists(self.name))
        self.assertRaises(FileNotFoundError, stillmap.SharedQuota.remove, self.name)

    def test_rooms(self):
        quota = self.quota(100, timeout=0.05)
        with quota.room(60) as room:
            self.assertEqual((room.nbytes, quota.stats()["own"]), (60, 60))
            quota.reserve(50)
            self.assertEqual(quota.stats()["own"], 60)
            with quota.room(20):  # a room within a room comes first
                quota.reserve(5)
            self.assertEqual(quota.stats()["own"], 65)
            self.assertRaisesSaying(stillmap.InvalidArgumentError, "open", room.__enter__)
        self.assertEqual(quota.stats()["own"], 55)
        self.assertRaises(ZeroDivisionError, self.fail_in, quota.room(10))
        self.assertEqual(quota.stats()["own"], 55)
        self.quota().reserve(40)
        error = self.assertRaisesSaying(stillmap.BusyError, str(os.getpid()), quota.room(20).__enter__)
        self.assertEqual((error.value, error.limit), (20, 5))
        self.assertEqual(quota.stats()["waits"]["busy"], 1)

    def fail_in(self, room):
        with room:
            1 / 0

    def test_a_room_belongs_to_its_thread(self):
        quota = self.quota(100)
        room = quota.room(10)
        other = threading.Thread(target=room.__enter__)
        other.start()
        other.join()
        self.assertRaisesSaying(stillmap.InvalidArgumentError, "another thread", room.__exit__, None, None, None)

    def test_a_room_that_is_dropped_ends(self):
        quota = self.quota(100)
        room = quota.room(10)
        room.__enter__()
        self.assertEqual(quota.stats()["own"], 10)
        del room
        gc.collect()
        self.assertEqual(quota.stats()["own"], 0)


class Reclaimers(QuotaTestCase):
    """Two participants in one process: what `holder` has, `asker` needs."""

    def setUp(self):
        super().setUp()
        self.holder = self.quota(100)
        self.asker = self.quota(timeout=2)
        self.holder.reserve(90)
        self.calls = []

    def release(self, nbytes):
        self.calls.append(nbytes)
        self.holder.release(nbytes)
        return nbytes

    def test_the_thread_calls_them(self):
        with self.holder.add_reclaimer("cached", self.release) as reclaimer:
            self.assertEqual((reclaimer.kind, reclaimer.closed), ("cached", False))
            self.holder.start_thread()
            self.holder.start_thread()
            mine = self.holder.stats()["participants"][0]
            self.assertEqual((mine["offers"], mine["listens"]), (["cached"], True))
            with self.asker.room(50):
                self.assertEqual(self.asker.stats()["own"], 50)
        self.assertEqual(self.calls, [40])
        self.assertTrue(reclaimer.closed)
        self.assertEqual(self.holder.stats()["participants"][0]["offers"], [])
        # The grant comes before the thread has counted it.
        self.eventually(lambda: self.holder.stats()["waits"]["given"]["cached"] == 40)
        self.assertEqual(len(self.asker.stats()["waits"]["recent_seconds"]), 1)
        expected = {"waits", "asked", "answered", "granted"}
        self.eventually(lambda: expected <= {e["action"] for e in stillmap.SharedQuota.events_of(self.name)})

    def ask(self, nbytes=50):
        """Waits for a room in a thread; its end is what came of it."""
        outcome = []

        def wait():
            try:
                with self.asker.room(nbytes):
                    outcome.append("granted")
            except stillmap.Error as error:
                outcome.append(error)

        thread = threading.Thread(target=wait)
        thread.start()

        def end():
            thread.join(20)
            return outcome[0]

        return end

    def poll(self, call, until=5):
        """Polls until something was released."""
        begun, given = time.monotonic(), 0
        while not given and time.monotonic() - begun < until:
            given = call()
            time.sleep(0.005)
        return given

    def test_a_task_is_asked_for_where_it_polls(self):
        reclaimer = self.holder.add_reclaimer("task", self.release)
        self.holder.start_thread()
        end = self.ask()
        self.assertEqual(self.poll(self.holder.poll), 40)
        self.assertEqual(end(), "granted")
        reclaimer.close()

    def test_later(self):
        ready, asked = [], threading.Event()

        def later(nbytes):
            if ready:
                return self.release(nbytes)
            asked.set()
            return stillmap.RECLAIM_LATER

        with self.holder.add_reclaimer("evictable", later):
            self.holder.start_thread()
            end = self.ask()
            self.assertTrue(asked.wait(20))
            self.assertEqual(self.calls, [])
            ready.append(True)
            self.assertEqual(self.poll(self.holder.poll), 40)
            self.assertEqual(end(), "granted")

    def test_the_end_of_the_object_ends_it(self):
        reclaimer = self.holder.add_reclaimer("cached", self.release)
        del reclaimer
        gc.collect()
        self.assertEqual(self.holder.stats()["participants"][0]["offers"], [])

    def test_a_circle(self):
        class Holder:
            def give(self, nbytes):
                return 0

        holder = Holder()
        holder.reclaimer = self.holder.add_reclaimer("cached", holder.give)
        gone = weakref.ref(holder)
        del holder
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual(self.holder.stats()["participants"][0]["offers"], [])

    def test_an_exception_is_raised_by_poll(self):
        with self.holder.add_reclaimer("task", lambda n: 1 / 0):
            end = self.ask()
            with self.assertRaises(ZeroDivisionError):
                self.poll(self.holder.poll)
            self.assertIsInstance(end(), stillmap.BusyError)

    def test_an_exception_in_the_thread_is_reported(self):
        for wrong in (lambda n: 1 / 0, lambda n: None, lambda n: -1, lambda n: 1 << 64, lambda: 0):
            seen, before = [], stillmap.stats()["background_errors"]
            hook, sys.unraisablehook = sys.unraisablehook, lambda raised: seen.append(raised.exc_type)
            try:
                with self.holder.add_reclaimer("cached", wrong):
                    self.holder.start_thread()
                    end = self.ask()
                    while not seen:
                        time.sleep(0.005)
            finally:
                sys.unraisablehook = hook
            self.assertIn(seen[0], (ZeroDivisionError, TypeError, OverflowError))
            self.assertGreater(stillmap.stats()["background_errors"], before)
            with self.holder.add_reclaimer("cached", self.release):
                self.assertEqual(end(), "granted")
            self.holder.reserve(90 - self.holder.stats()["own"])

    def test_no_memory_for_a_reclaimer(self):
        said = []

        def ask_itself(nbytes):
            for call in (self.holder.room(1).__enter__, self.asker.room(1).__enter__, self.holder.poll):
                try:
                    call()
                except stillmap.BusyError as error:
                    said.append(str(error))
            return self.release(nbytes)

        with self.holder.add_reclaimer("cached", ask_itself):
            self.holder.start_thread()
            self.assertEqual(self.ask()(), "granted")
        self.assertEqual(len(said), 3)

    def test_closing_in_the_call(self):
        made = []

        def once(nbytes):
            made.pop().close()
            return self.release(nbytes)

        made.append(self.holder.add_reclaimer("cached", once))
        self.holder.start_thread()
        self.assertEqual(self.ask()(), "granted")
        self.assertEqual(self.holder.stats()["participants"][0]["offers"], [])

    def test_dropping_the_last_reference_in_the_call(self):
        for polls in (False, True):
            with self.subTest(polls=polls):
                quotas = [stillmap.SharedQuota(self.name)]
                quotas[0].reserve(10)
                called = []

                def drop(nbytes, quotas=quotas, called=called):
                    called.append(nbytes)
                    quotas.clear()
                    return 0  # what it had is free once it has left

                reclaimer = quotas[0].add_reclaimer("task" if polls else "cached", drop)
                if polls:
                    end = self.ask(10)
                    while quotas:
                        quota = quotas[0]
                        poll, quota = quota.poll, None
                        poll()
                        del poll
                        time.sleep(0.005)
                else:
                    quotas[0].start_thread()
                    end = self.ask(10)
                self.assertEqual(end(), "granted")
                self.assertTrue(called)
                reclaimer.close()

    def test_others_run_while_a_call_waits(self):
        ticks = []
        end = self.ask()
        begun = time.monotonic()
        while time.monotonic() - begun < 0.2:
            ticks.append(0)
            time.sleep(0.001)
        self.assertGreater(len(ticks), 20)
        with self.holder.add_reclaimer("cached", self.release):
            self.holder.start_thread()
            self.assertEqual(end(), "granted")

    def test_many_threads(self):
        self.holder.release(90)
        failures = []

        def work(quota):
            try:
                for i in range(20):
                    with quota.room(1 + i):
                        quota.reserve(1)
                        quota.stats()
                    quota.release(1)
                    quota.add_reclaimer("evictable", lambda n: 0).close()
            except BaseException as failure:  # noqa: B902
                failures.append(failure)

        self.holder.start_thread()
        self.asker.start_thread()
        threads = [threading.Thread(target=work, args=[q]) for q in (self.holder, self.asker) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(failures, [])
        self.assertEqual(self.holder.stats()["reserved"], 0)


class Allocators(QuotaTestCase):
    def test_an_allocator_takes_part(self):
        quota = self.quota(64 * MiB, timeout=0.1)
        heap = stillmap.CachingAllocator(quota=quota)
        block = heap.allocate(20 * MiB)
        committed = heap.stats()["total"]["committed"]
        self.assertEqual(quota.stats()["own"], committed)
        self.assertEqual(quota.stats()["participants"][0]["offers"], ["cached"])
        self.quota().reserve(64 * MiB - committed)
        error = self.assertRaisesSaying(stillmap.OutOfMemoryError, "holds", heap.allocate, 20 * MiB)
        self.assertIn(str(os.getpid()), str(error))
        quota.close()  # the allocator keeps it
        heap.free(block)
        heap.empty_cache()
        heap.close()
        self.assertEqual(len(stillmap.SharedQuota.stats_of(self.name)["participants"]), 1)

    def test_others_are_asked_before_the_program(self):
        mine, theirs = self.quota(64 * MiB), self.quota()
        asked = []
        first = stillmap.CachingAllocator(quota=theirs)
        second = stillmap.CachingAllocator(quota=mine, on_out_of_memory=asked.append)
        first.free(first.allocate(50 * MiB))
        theirs.start_thread()
        self.assertTrue(second.allocate(40 * MiB))
        self.assertEqual(asked, [])
        self.assertLessEqual(first.stats()["total"]["committed"], 24 * MiB)
        first.close()
        second.close()

    def test_c_code_that_holds_the_gil(self):
        # The request waits, while the quota's thread calls Python.
        self.quota(100 * MiB).reserve(60 * MiB)
        mine, asker = self.quota(timeout=0.5), self.quota(timeout=5)
        heap = stillmap.CachingAllocator(quota=mine)
        heap.allocate(30 * MiB)
        called = threading.Event()

        def slow(nbytes):
            called.set()
            time.sleep(0.001)
            return 0

        def ask():
            try:
                asker.room(90 * MiB).__enter__()
            except stillmap.BusyError:
                pass

        with mine.add_reclaimer("evictable", slow):
            mine.start_thread()
            other = threading.Thread(target=ask)
            other.start()
            called.wait(10)
            malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(heap.c_malloc)
            for _ in range(3):
                self.assertIsNone(malloc(heap.c_param, 20 * MiB, 0))
            other.join(20)
        heap.close()

    def test_a_name_is_opened_once(self):
        heaps = [stillmap.CachingAllocator(share=self.name, share_limit=64 * MiB) for _ in range(2)]
        heaps.append(stillmap.CachingAllocator(share=self.name, share_limit=32 * MiB))  # somebody takes part
        s = stillmap.SharedQuota.stats_of(self.name)
        self.assertEqual((len(s["participants"]), s["limit"]), (1, 64 * MiB))
        self.assertTrue(s["participants"][0]["listens"])
        heaps[0].allocate(5 * MiB)
        heaps[1].allocate(5 * MiB)
        self.assertGreaterEqual(stillmap.SharedQuota.stats_of(self.name)["reserved"], 10 * MiB)
        heaps[0].close()
        self.assertEqual(len(stillmap.SharedQuota.stats_of(self.name)["participants"]), 1)
        heaps[1].close()
        heaps[2].close()
        self.assertEqual(stillmap.SharedQuota.stats_of(self.name)["participants"], [])
        # Nobody takes part: another limit counts.
        stillmap.CachingAllocator(share=self.name, share_limit=48 * MiB).close()
        self.assertEqual(stillmap.SharedQuota.stats_of(self.name)["limit"], 48 * MiB)
        stillmap.CachingAllocator(share=self.name).close()
        self.assertEqual(stillmap.SharedQuota.stats_of(self.name)["limit"], 48 * MiB)

    def test_the_devices_memory_is_the_limit(self):
        stillmap.CachingAllocator(share=self.name).close()
        self.assertEqual(stillmap.SharedQuota.stats_of(self.name)["limit"], stillmap.device_info()["total_bytes"])

    @needs_vmm
    def test_what_is_suspended_comes_back(self):
        heap = stillmap.CachingAllocator(share=self.name, share_limit=100 * MiB, tag="shared")
        block = heap.allocate(60 * MiB)
        driver().write(block, b"contents")
        stillmap.suspend("shared")
        other = self.quota()
        other.reserve(80 * MiB)

        def give(nbytes):
            other.release(nbytes)
            return nbytes

        with other.add_reclaimer("cached", give):
            other.start_thread()
            stillmap.resume("shared")
        self.assertEqual(driver().read(block, 8), b"contents")
        s = other.stats()
        self.assertEqual((s["own"], s["reserved"]), (40 * MiB, 100 * MiB))
        stillmap.suspend("shared")
        other.reserve(60 * MiB)
        other.close()  # nobody gives: but nobody has it, either
        stillmap.resume("shared")
        heap.close()

    @unittest.skipUnless(stillmap.device_count() > 1, "one device")
    def test_a_name_for_each_device(self):
        heaps = [stillmap.CachingAllocator(d, share=self.name, share_limit=(d + 1) * 64 * MiB) for d in (0, 1)]
        self.assertEqual(stillmap.SharedQuota.stats_of(self.name)["limit"], 64 * MiB)
        self.assertEqual(stillmap.SharedQuota.stats_of(self.name + ".1")["limit"], 128 * MiB)
        for heap in heaps:
            heap.close()


class Processes(QuotaTestCase):
    def test_cached_memory_of_another_process_serves_a_request(self):
        first, committed = self.start(give_cached_memory, self.name, 96 * MiB, 80 * MiB)
        self.assertGreaterEqual(committed, 80 * MiB)
        with stillmap.CachingAllocator(share=self.name) as second:
            block = second.allocate(60 * MiB)
            driver().write(block, b"contents")
            self.assertEqual(driver().read(block, 8), b"contents")
            first.send("how much")
            self.assertLessEqual(first.recv()[0], 96 * MiB - 60 * MiB)
            s = stillmap.SharedQuota.stats_of(self.name)
            self.assertEqual(len(s["participants"]), 2)
            self.assertLessEqual(s["reserved"], 96 * MiB)

    def test_who_keeps_memory_is_named(self):
        quota = self.quota(100, timeout=0.2)
        _, process = self.start(hold, self.name, 90)
        self.assertRaisesSaying(stillmap.BusyError, "process %d holds" % process, quota.room(20).__enter__)
        self.assertEqual(stillmap.SharedQuota.set_terms(self.name, process, minimum=50), "applied")

    def test_a_process_that_polls_gives_a_task(self):
        quota = self.quota(100)
        other, _ = self.start(evict, self.name, 90)
        with quota.room(50):
            quota.reserve(50)
        self.assertEqual(other.recv(), 40)
        self.assertEqual(quota.stats()["waits"]["granted"], 1)

    def test_a_process_that_is_killed_leaves(self):
        self.quota(100)
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=hold, args=(theirs, self.name, 90), daemon=True)
        process.start()
        ours.recv()
        process.kill()
        process.join()
        self.quota(timeout=5).room(50).__enter__()


class OneDevice(TestCase):
    """hostcuda's device as that of several processes, in processes beside this one."""

    def run_on_one_machine(self, share):
        return self.run_python("import quota_test, sys; quota_test.share_device(sys.argv[1])", share, timeout=120,
                               HOSTCUDA=self.one_machine("memory=1G"))

    def test_memory_that_a_process_keeps_is_not_there_for_another(self):
        self.assertEqual(self.run_on_one_machine(""), "refused\n")

    def test_a_process_gives_what_it_keeps(self):
        self.assertEqual(self.run_on_one_machine(self.path("quota")), "given\n")


def share_device(share):
    """What test_a_process_gives_what_it_keeps runs, and the control without a quota."""
    total = stillmap.device_info()["total_bytes"]
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=give_cached_memory, args=(theirs, share, 0, total * 3 // 4), daemon=True)
    process.start()
    theirs.close()
    ours.recv()
    assert stillmap.device_info()["free_bytes"] <= total // 4, stillmap.device_info()
    try:
        stillmap.CachingAllocator(share=share).allocate(total // 2)
        print("given")
        ours.send("how much")
        assert ours.recv()[0] <= total // 2
    except stillmap.OutOfMemoryError:
        print("refused")
    ours.send("end")
    process.join()


class Heaps(TestCase):
    """PyTorch's heaps, by the functions that it calls."""

    def run_heaps(self, code, **environment):
        return self.run_python(textwrap.dedent("""
            import ctypes, os, sys
            import stillmap
            from stillmap import _native
            share = sys.argv[1]
            malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
            plugin = ctypes.CDLL(stillmap.plugin_path())
            def allocate(nbytes): return malloc(("stillmap_try_malloc", plugin))(nbytes, 0, None)
            def pool(tag, share=None, share_limit=None):
                return malloc(_native._torch_pool(tag, None, None, share, share_limit)[0])
            def participants(): return stillmap.SharedQuota.stats_of(share)["participants"]
        """) + textwrap.dedent(code), self.path("quota"), **environment)

    def test_the_variable(self):
        self.run_heaps("""
            assert allocate(5 << 20) and pool("kv")(7 << 20, 0, None) and pool("weights")(9 << 20, 0, None)
            only, = participants()   # of all three heaps
            assert only["reserved"] >= 21 << 20 and only["listens"] and only["offers"] == ["cached"], only
            assert stillmap.SharedQuota.stats_of(share)["limit"] == 96 << 20
            assert not pool("kv")(90 << 20, 0, None)
            assert "limit" in _native._torch_take_refusal()
        """, STILLMAP_SHARE=self.path("quota") + ":96MiB")

    def test_options(self):
        self.run_heaps("""
            _native._torch_configure("torch", None, None, None, share, 64 << 20)
            assert allocate(5 << 20)
            before = participants()
            assert pool("none", "")(5 << 20, 0, None)
            assert participants() == before and len(before) == 1 and before[0]["reserved"] >= 5 << 20, before
            assert stillmap.SharedQuota.stats_of(share)["limit"] == 64 << 20
        """, STILLMAP_SHARE=self.path("another"))
        self.assertFalse(os.path.exists(self.path("another")))

    def test_wrong_values(self):
        for value in (":1G", "x:", "x:0", "x:1X", "x:-1"):
            self.run_heaps("""
                try: _native._torch_pool("kv", None, None, None, None)
                except stillmap.InvalidArgumentError as error: assert error.subject == "STILLMAP_SHARE", error
                else: sys.exit(1)
                assert not allocate(1) and "STILLMAP_SHARE" in stillmap.last_error(), stillmap.last_error()
            """, STILLMAP_SHARE=value)

    def test_the_end_of_the_process_while_others_ask(self):
        for ends in ("sys.exit()", "ctypes.CDLL(None).exit(0)"):
            self.run_heaps("""
                import threading, time
                kv = pool("kv")
                assert kv(5 << 20, 0, None)
                asker = stillmap.SharedQuota(share, timeout=0.2)
                def ask():
                    while True:
                        try: asker.room(64 << 20).__enter__()
                        except stillmap.Error: pass
                threading.Thread(target=ask, daemon=True).start()
                time.sleep(0.1)
            """ + " " * 4 + ends, STILLMAP_SHARE=self.path("quota") + ":64MiB")


class End(TestCase):
    """The interpreter ends while a quota's thread runs, and is asked all the time."""

    MAKE = """
        import atexit, os, sys, threading, time
        import stillmap
        quota, asker = stillmap.SharedQuota(sys.argv[1], 1 << 30), stillmap.SharedQuota(sys.argv[1], timeout=0.5)
        heap = stillmap.CachingAllocator(quota=quota)
        heap.free(heap.allocate(64 << 20))
        quota.reserve(quota.stats()["limit"] - quota.stats()["own"])
        quota.start_thread()
        calls = []
        def slow(nbytes):
            calls.append(nbytes)
            time.sleep(0.01)
            return 0
        reclaimers = [quota.add_reclaimer(kind, slow) for kind in ("cached", "evictable")]
        def ask():
            while True:
                try: asker.room(512 << 20).__enter__()
                except stillmap.Error: pass
        def ask_always():
            threading.Thread(target=ask, daemon=True).start()
            while not calls: time.sleep(0.001)
    """

    def end(self, code, **options):
        return self.run_python(textwrap.dedent(self.MAKE) + textwrap.dedent(code), self.path("quota"), timeout=30,
                               **options)

    def test_with_a_running_thread(self):
        for _ in range(5):
            self.end("ask_always()")

    def test_references_that_are_never_dropped(self):
        self.end("""
            import ctypes
            for thing in (quota, heap, *reclaimers): ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
            ask_always()
        """)

    def test_without_the_python_objects(self):
        self.end("ask_always(); del quota")
        self.end("ask_always(); del reclaimers")

    def test_at_exit(self):
        self.end("atexit.register(lambda: (quota.stats(), quota.close(), reclaimers.clear())); ask_always()")

    def test_a_reclaimer_that_does_not_return(self):
        # It is waited for, but not for ever.
        self.end("""
            reclaimers.append(quota.add_reclaimer("cached", lambda n: time.sleep(1000)))
            reclaimers[:2] = []
            threading.Thread(target=ask, daemon=True).start()
            time.sleep(0.3)
        """)

    def test_exit_in_a_reclaimer(self):
        self.end("""
            def leave(nbytes): raise SystemExit(3)
            reclaimers.append(quota.add_reclaimer("evictable", leave))
            sys.unraisablehook = lambda raised: calls.append(raised)
            ask_always()
        """)

    def test_shared_by_name(self):
        self.end("""
            named = stillmap.CachingAllocator(share=sys.argv[1])
            sys.keep = named
            ask_always()
        """)

    def test_a_forked_child(self):
        self.end("""
            ask_always()
            for closes in (False, True):
                pid = os.fork()
                if pid == 0:
                    for call in (lambda: quota.reserve(1), quota.stats, quota.poll, quota.start_thread,
                                 lambda: quota.room(1), lambda: quota.add_reclaimer("cached", slow)):
                        try: call()
                        except stillmap.NotSupportedError as error: assert "fork" in str(error), error
                        else: os._exit(1)
                    if closes: quota.close(); heap.close(); reclaimers.clear(); asker.close()
                    sys.exit(42)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
        """)


if __name__ == "__main__":
    unittest.main()
