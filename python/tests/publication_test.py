"""Published memory: holders, what readers see, generations, private copies, claims, other processes."""

import gc
import multiprocessing
import os
import threading
import time
import unittest
import weakref

import stillmap
from support import MiB, TestCase, device, driver, needs_vmm, numpy_or_skip

spawn = multiprocessing.get_context("spawn")
PAGE = device()["page_bytes"]
HINT = 0x3100_0000_0000


def buffer(pages=3, tag="weights", hint=0, **options):
    made = stillmap.GrowableBuffer(pages * PAGE, reserve=2 * pages * PAGE, tag=tag, hint=hint, exportable=True, **options)
    for page in range(pages):
        made.copy_from_host(b"%s %d" % (tag.encode(), page), page * PAGE)
    return made


def read(at):
    return driver().read(at, 9).rstrip(b"\0")


def attach_and_wait(connection, name, holder):
    """A process that reads, and says what it sees. Ends when it is told to, or is killed."""
    memory = stillmap.attach(name, holder=holder, wait=20)
    only, = memory.ranges("weights")
    connection.send((only.address, [read(only.address + page * PAGE) for page in range(3)],
                     memory.shared_bytes, stillmap.device_info()["free_bytes"]))
    while (asked := connection.recv()) != "end":
        if asked == "write":
            memory.make_writable(only.address, 1)
            driver().write(only.address, b"mine")
        connection.send(read(only.address))
    memory.close()


def publish_and_end(connection, name, holder):
    with buffer(hint=HINT) as made:
        connection.send((made.address, stillmap.publish(name, "weights", holder=holder)))
        connection.recv()


def claim_or_attach(connection, name, holder, dies):
    """A process of several that start at the same time."""
    found = stillmap.attach_or_claim(name, holder=holder, wait=30)
    if isinstance(found, stillmap.PublicationClaim):
        if dies:
            connection.send("dies")
            os._exit(7)
        with found, buffer(hint=HINT) as made:
            found.publish("weights", metadata=b"by %d" % os.getpid())
            connection.send(("published", read(made.address)))
            connection.recv()
    else:
        with found as memory:
            connection.send((memory.metadata, read(memory.ranges()[0].address)))
            connection.recv()


@needs_vmm
@unittest.skipUnless(device()["posix_fd_export"], "pages cannot be exported")
class PublicationTestCase(TestCase):
    def setUp(self):
        super().setUp()
        self.address = self.path("holder")
        self.holder = stillmap.PublicationHolder(self.address)
        self.addCleanup(self.holder.close)

    def publish(self, name="model", tags="weights", **options):
        return stillmap.publish(name, tags, holder=self.address, **options)

    def attach(self, name="model", **options):
        """Elsewhere, because this process has the addresses."""
        return stillmap.attach(name, holder=self.address, relocate=True, **options)

    def start(self, function, *arguments):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=function, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        self.addCleanup(process.join, 20)
        self.addCleanup(process.kill)
        return process, ours

    def answer(self, connection):
        self.assertTrue(connection.poll(30), "the process does not answer")
        return connection.recv()


class Interface(PublicationTestCase):
    def test_readers_share_the_pages_and_cannot_write(self):
        with buffer() as made:
            published = self.publish(metadata=memoryview(b"tensors"))
            self.assertEqual((published["pages"], published["nbytes"], len(published["id"])), (3, 3 * PAGE, 64))
            free = stillmap.device_info()["free_bytes"]
            with self.attach(verify=True) as memory, self.attach() as other:
                self.assertEqual(stillmap.device_info()["free_bytes"], free)
                self.assertEqual((memory.name, memory.metadata, memory.id, memory.generation, memory.device),
                                 ("model", b"tensors", published["id"], published["generation"], 0))
                self.assertEqual((memory.shared_bytes, memory.private_bytes), (3 * PAGE, 0))
                only, = memory.ranges()
                self.assertEqual((only.tag, only.nbytes, only.reserved, only.device), ("weights", 3 * PAGE, 6 * PAGE, 0))
                self.assertEqual(memory.ranges("other"), [])
                self.assertEqual(read(only.address + 2 * PAGE), b"weights 2")
                for at in (only.address, made.address, other.ranges()[0].address):
                    self.assertRaises(RuntimeError, driver().write, at, b"no")
                listed, = stillmap.publications(self.address)
                self.assertEqual(self.holder.publications(), [listed])
                self.assertEqual(listed, {"name": "model", "generation": published["generation"], "newest": True,
                                          "device": device()["uuid"], "pages": 3, "nbytes": 3 * PAGE,
                                          "publisher": os.getpid(), "readers": [os.getpid()] * 2})
            self.eventually(lambda: self.holder.publications()[0]["readers"] == [])

    def test_private_copies(self):
        with buffer():
            self.publish()
            with self.attach() as memory, self.attach() as other:
                only = memory.ranges()[0]
                stream = driver().stream()
                memory.make_writable(only.address + PAGE + 5, 1, stream)
                driver().destroy(stream)
                self.assertEqual((memory.shared_bytes, memory.private_bytes), (2 * PAGE, PAGE))
                driver().write(only.address + PAGE, b"mine")
                self.assertRaises(RuntimeError, driver().write, only.address, b"no")
                self.assertEqual(read(other.ranges()[0].address + PAGE), b"weights 1")
                self.assertTrue(only.__cuda_array_interface__["data"][1])
                memory.make_writable(only.address, 3 * PAGE)
                self.assertFalse(only.__cuda_array_interface__["data"][1])
                self.assertRaises(stillmap.InvalidArgumentError, memory.make_writable, only.address - 1, 2)

    def test_generations(self):
        with buffer(tag="one"), buffer(tag="two", pages=1):
            first, second = self.publish(tags="one")["generation"], None
            with self.attach() as old:
                second = self.publish(tags=["two"], digests=False)
                self.assertIsNone(second["id"])
                self.assertGreater(second["generation"], first)
                with self.attach() as new, self.attach(generation=first) as again:
                    self.assertEqual([m.generation for m in (old, new, again)],
                                     [first, second["generation"], first])
                    self.assertIsNone(new.id)
                    self.assertEqual(read(new.ranges()[0].address), b"two 0")
                self.assertEqual([p["newest"] for p in stillmap.publications(self.address)], [False, True])
            self.eventually(lambda: len(self.holder.publications()) == 1)
            self.assertRaisesSaying(stillmap.InvalidArgumentError, "generation", self.attach, generation=first)
            self.assertEqual(stillmap.withdraw("model", holder=self.address), second["generation"])
            self.assertEqual(stillmap.publications(self.address), [])
            self.assertRaises(stillmap.InvalidArgumentError, stillmap.withdraw, "model", holder=self.address)
            self.assertRaises(stillmap.InvalidArgumentError, self.attach)

    def test_claims(self):
        claim = stillmap.attach_or_claim("model", holder=self.address)
        self.assertIsInstance(claim, stillmap.PublicationClaim)
        self.assertEqual((claim.name, claim.closed), ("model", False))
        self.assertRaisesSaying(stillmap.BusyError, "time", stillmap.attach_or_claim, "model", holder=self.address, wait=0.1)
        claim.close()
        self.assertTrue(claim.closed)
        self.assertRaisesSaying(stillmap.InvalidArgumentError, "ended", claim.publish, "weights")
        with stillmap.attach_or_claim("model", holder=self.address, wait=10) as again:
            self.assertRaises(stillmap.InvalidArgumentError, again.publish, "no such tag")
            self.assertTrue(again.closed, "also on failure")
        with buffer(), stillmap.attach_or_claim("model", holder=self.address, wait=10) as third:
            third.publish("weights", metadata=b"third")
            with stillmap.attach_or_claim("model", holder=self.address, relocate=True) as memory:
                self.assertEqual(memory.metadata, b"third")

    def test_wrong_arguments(self):
        with buffer() as made, stillmap.GrowableBuffer(PAGE, tag="private"):
            for call in (lambda: self.publish(3), lambda: self.publish(tags=3), lambda: self.publish(metadata="text"),
                         lambda: stillmap.attach("model"), lambda: self.attach(wait="1"), lambda: self.attach(3),
                         lambda: stillmap.PublicationHolder(3), lambda: stillmap.attach("model", holder=None)):
                self.assertRaises(TypeError, call)
            for call in (lambda: self.publish(""), lambda: self.publish("a\n"), lambda: self.publish(tags="none"),
                         lambda: self.publish(tags=[]), lambda: self.publish(device=99), lambda: self.publish(timeout=-1),
                         lambda: self.attach(), lambda: self.attach(wait=float("nan")),
                         lambda: stillmap.GrowableBuffer(page_size=PAGE + 1)):
                self.assertRaises(stillmap.InvalidArgumentError, call)
            self.assertRaisesSaying(stillmap.NotSupportedError, "export", self.publish, tags="private")
            self.assertRaises(OSError, stillmap.attach, "model", holder=self.path("nobody"))
            self.assertRaisesSaying(stillmap.BusyError, self.address, stillmap.PublicationHolder, self.address)
            driver().write(made.address, b"as before")

    def test_close(self):
        with buffer():
            self.publish()
            memory = self.attach()
            only = memory.ranges()[0]
            with memory as same:
                self.assertIs(same, memory)
            for call in (lambda: memory.generation, lambda: memory.metadata, memory.ranges, lambda: memory.shared_bytes,
                         lambda: memory.make_writable(only.address, 1), lambda: only.__cuda_array_interface__,
                         lambda: only.__dlpack__(max_version=(1, 0)), memory._hold):
                self.assertRaisesSaying(stillmap.InvalidArgumentError, "closed", call)
            memory.close()
        self.holder.close()
        self.assertRaisesSaying(stillmap.InvalidArgumentError, "closed", self.holder.publications)
        self.assertRaises(OSError, stillmap.publications, self.address)
        with stillmap.PublicationHolder(self.address) as again:
            self.assertEqual((again.address, again.publications()), (self.address, []))

    def test_views(self):
        with buffer() as made:
            self.publish()
            memory = self.attach()
            only = memory.ranges()[0]
            interface = only.__cuda_array_interface__
            self.assertEqual((interface["shape"], interface["data"], interface["typestr"]),
                             ((3 * PAGE,), (only.address, True), "|u1"))
            self.assertEqual(only.__dlpack_device__(), (2, 0))
            self.assertRaisesSaying(BufferError, "read-only", only.__dlpack__)
            capsule = only.__dlpack__(max_version=(1, 0))
            self.assertRaisesSaying(stillmap.BusyError, "views", memory.close)
            del capsule
            hold = memory._hold()
            self.assertRaises(stillmap.BusyError, memory.close)
            gone = weakref.ref(memory)
            del memory, only
            gc.collect()
            self.assertIsNotNone(gone())
            del hold
            gc.collect()
            self.assertIsNone(gone())
            self.eventually(lambda: self.holder.publications()[0]["readers"] == [])
            del made

    def test_numpy(self):
        numpy_or_skip()
        with buffer():
            self.publish()
            with self.attach() as memory:
                array = memory.ranges()[0].numpy()
                self.assertEqual(bytes(array[PAGE:PAGE + 9]), b"weights 1")
                self.assertFalse(array.flags.writeable)
                self.assertRaises(stillmap.BusyError, memory.close)
                del array

    def test_suspended_memory_is_refused(self):
        with buffer():
            stillmap.suspend("weights")
            self.assertRaises(stillmap.BusyError, self.publish)
            stillmap.resume("weights")
            self.publish()

    def test_others_run_while_a_call_waits(self):
        done = []
        with stillmap.attach_or_claim("model", holder=self.address):
            def wait():
                try:
                    self.attach(wait=0.5)
                except stillmap.BusyError as error:
                    done.append(error)
            waiting = threading.Thread(target=wait)
            begun, ticks = time.monotonic(), 0
            waiting.start()
            while not done:
                ticks += 1
                time.sleep(0.001)
            waiting.join()
        self.assertGreater(ticks, 50 * (time.monotonic() - begun))

    def test_control_c_ends_a_wait(self):
        self.run_python("""
            import _thread, signal, stillmap, sys, threading, time
            # A process that a script starts in the background ignores the signal.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Timer(0.3, _thread.interrupt_main).start()
            begun = time.monotonic()
            try:
                stillmap.attach("model", holder=sys.argv[1], wait=30)
            except KeyboardInterrupt:
                assert time.monotonic() - begun < 20
            else:
                raise SystemExit(1)
        """, self.address)


class Processes(PublicationTestCase):
    def test_the_publisher_ends_and_readers_come_and_go(self):
        publisher, connection = self.start(publish_and_end, "model", self.address)
        at, published = self.answer(connection)
        connection.send("end")
        publisher.join(20)
        self.assertEqual(publisher.exitcode, 0)
        contents = [b"weights %d" % page for page in range(3)]
        first, to_first = self.start(attach_and_wait, "model", self.address)
        second, to_second = self.start(attach_and_wait, "model", self.address)
        for connection in (to_first, to_second):
            self.assertEqual(self.answer(connection)[:3], (at, contents, 3 * PAGE))
        to_first.send("write")
        self.assertEqual(self.answer(to_first), b"minehts 0")
        to_second.send("read")
        self.assertEqual(self.answer(to_second), contents[0])
        self.assertEqual(sorted(self.holder.publications()[0]["readers"]), sorted([first.pid, second.pid]))
        first.kill()
        first.join(20)
        self.eventually(lambda: self.holder.publications()[0]["readers"] == [second.pid])
        again, to_again = self.start(attach_and_wait, "model", self.address)
        self.assertEqual(self.answer(to_again)[:2], (at, contents))
        self.holder.close()  # what is mapped stays
        to_second.send("read")
        self.assertEqual(self.answer(to_second), contents[0])
        for connection, process in ((to_second, second), (to_again, again)):
            connection.send("end")
            process.join(20)
            self.assertEqual(process.exitcode, 0)

    def test_one_of_several_publishes(self):
        for dies in (False, True):
            with self.subTest(dies=dies):
                name = "model %s" % dies
                first, to_first = self.start(claim_or_attach, name, self.address, dies)
                if dies:
                    self.assertEqual(self.answer(to_first), "dies")
                started = [self.start(claim_or_attach, name, self.address, False) for _ in range(2)]
                told = [self.answer(to) for to in ([] if dies else [to_first]) + [to for _, to in started]]
                self.assertEqual([t[0] for t in told].count("published"), 1, told)
                self.assertEqual({t[1] for t in told}, {b"weights 0"})
                self.assertEqual(len({t[0] for t in told}), 2, told)
                for process, to in started + ([] if dies else [(first, to_first)]):
                    to.send("end")
                    process.join(20)
                    self.assertEqual(process.exitcode, 0)


@needs_vmm
@unittest.skipUnless(device()["posix_fd_export"], "pages cannot be exported")
class OneDevice(TestCase):
    def test_the_device_has_the_memory_once(self):
        self.assertEqual(self.run_python("import publication_test, sys; publication_test.share_memory(sys.argv[1])",
                                         self.path("holder"), timeout=120, HOSTCUDA=self.one_machine("memory=1G")),
                         "once\n")


def share_memory(address):
    """Two readers on the device of the publisher."""
    empty = stillmap.device_info()["free_bytes"]
    with stillmap.PublicationHolder(address), buffer(300 * MiB // PAGE, hint=HINT) as made:
        stillmap.publish("model", "weights", holder=address)
        published = stillmap.device_info()["free_bytes"]
        assert empty - published < 310 * MiB, (empty, published)
        readers = []
        for _ in range(2):  # one after the other: a device that is opened is probed with a page
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=attach_and_wait, args=(theirs, "model", address), daemon=True)
            process.start()
            theirs.close()
            at, _, shared, free = ours.recv()
            assert at == made.address and shared == 300 * MiB
            assert free == published, (free, published)
            readers.append((process, ours))
        print("once")
        for process, ours in readers:
            ours.send("end")
            process.join()


if __name__ == "__main__":
    unittest.main()
