"""stillmap.cuda_core in cuda.core: every byte that is copied is compared."""

import ctypes
import gc
import importlib.util
import pathlib
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from support import TestCase, needs_vmm

HAVE = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.core") is not None
if HAVE:
    from cuda.core import Device, LegacyPinnedMemoryResource
    from stillmap.cuda_core import MemoryResource, allocate_growable, grow

MiB = 1 << 20


@unittest.skipUnless(HAVE, "cuda-core is not installed")
class CudaCore(TestCase):
    def setUp(self):
        super().setUp()
        self.device = Device()
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.pinned = LegacyPinnedMemoryResource()
        self.resource = MemoryResource(limit=64 * MiB)

    def live(self):
        return self.resource.allocator.stats()["total"]["live"]

    def write(self, buffer, data, stream=None):
        host = self.pinned.allocate(len(data))
        ctypes.memmove(int(host.handle), data, len(data))
        buffer.copy_from(host, stream=stream or self.stream)
        (stream or self.stream).sync()

    def read(self, buffer, stream=None):
        host = self.pinned.allocate(buffer.size)
        buffer.copy_to(host, stream=stream or self.stream)
        (stream or self.stream).sync()
        return ctypes.string_at(int(host.handle), buffer.size)

    def test_bytes_go_and_come_back(self):
        data = bytes(range(256)) * 40
        buffer = self.resource.allocate(len(data), stream=self.stream)
        self.assertTrue(self.resource.allocator.owns(int(buffer.handle)))
        self.write(buffer, data)
        self.assertEqual(self.read(buffer), data)
        self.assertTrue(buffer.is_device_accessible)
        self.assertFalse(buffer.is_host_accessible)
        self.assertEqual((buffer.device_id, buffer.is_managed), (0, False))
        buffer.close(self.stream)
        self.assertEqual(self.live(), 0)

    def test_as_the_devices_resource(self):
        before = self.device.memory_resource
        self.addCleanup(setattr, self.device, "memory_resource", before)
        self.device.memory_resource = self.resource
        buffer = self.device.allocate(1000, stream=self.stream)
        self.assertTrue(self.resource.allocator.owns(int(buffer.handle)))
        del buffer
        gc.collect()
        self.assertEqual(self.live(), 0)

    def test_closed_on_another_stream(self):
        other = self.device.create_stream()
        buffer = self.resource.allocate(1000, stream=self.stream)
        buffer.close(other)
        other.sync()
        self.stream.sync()
        self.assertEqual(self.live(), 0)

    def test_an_empty_buffer(self):
        self.resource.allocate(0, stream=self.stream).close()
        self.assertEqual(self.live(), 0)

    def test_errors(self):
        with self.assertRaisesRegex(MemoryError, "CUDA_ERROR_OUT_OF_MEMORY.*limit") as raised:
            self.resource.allocate(65 * MiB, stream=self.stream)
        self.assertEqual(raised.exception.unit, "bytes")
        with self.assertRaisesRegex(TypeError, "pass a stream"):
            self.resource.allocate(9, stream=None)
        with self.assertRaisesRegex(ValueError, "its device"):
            MemoryResource(1, allocator=self.resource.allocator)
        builder = self.device.create_graph_builder()
        with self.assertRaisesRegex(NotImplementedError, "GraphMemoryResource"):
            self.resource.allocate(9, stream=builder)

    def test_an_exception_of_a_callback_passes(self):
        def ask(nbytes):
            raise KeyError("mine")
        resource = MemoryResource(limit=4 * MiB, on_out_of_memory=ask)
        with self.assertRaisesRegex(KeyError, "mine"):
            resource.allocate(9 * MiB, stream=self.stream)

    def test_freed_after_the_allocator_was_closed(self):
        buffer = self.resource.allocate(1000, stream=self.stream)
        self.resource.allocator.close()
        buffer.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            self.resource.allocate(1000, stream=self.stream)

    def test_threads(self):
        wrong = []

        def work(seed):
            try:
                self.device.set_current()
                stream = self.device.create_stream()
                for size in range(1, 4000, 83):
                    buffer = self.resource.allocate(size, stream=stream)
                    buffer.fill(seed, stream=stream)
                    if self.read(buffer, stream) != bytes([seed]) * size:
                        wrong.append((seed, size))
                    buffer.close(stream)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(self.live(), 0)

    @needs_vmm
    def test_growth_keeps_the_address_and_the_bytes(self):
        first = allocate_growable(MiB, reserve=64 * MiB)
        data = bytes(range(256)) * 4096
        self.write(first, data)
        second = grow(first, 20 * MiB, stream=self.stream)
        self.assertEqual(int(second.handle), int(first.handle))
        self.assertEqual((first.size, second.size), (MiB, 20 * MiB))
        second.fill(7, stream=self.stream)
        first.close()
        del first
        self.assertEqual(self.read(second), b"\7" * (20 * MiB), "the new buffer holds the memory")
        for size in (MiB, 10 << 30):
            with self.assertRaisesRegex(ValueError, "it has 20971520"):
                grow(second, size, stream=self.stream)
        with self.assertRaisesRegex(TypeError, "allocate_growable"):
            grow(self.resource.allocate(9, stream=self.stream), 10, stream=self.stream)

    def test_exit_with_live_buffers(self):
        self.run_python("""
            from cuda.core import Device
            from stillmap.cuda_core import MemoryResource, allocate_growable, grow
            device = Device(); device.set_current()
            device.memory_resource = MemoryResource()
            stream = device.create_stream()
            kept = [device.allocate(999, stream=stream) for _ in range(9)]
            import stillmap
            if stillmap.device_info()["vmm"]:
                kept.append(grow(allocate_growable(9, reserve=1 << 30), 1 << 20, stream=stream))
        """)

    def test_a_forked_child_frees_nothing(self):
        self.run_python("""
            import gc, os
            from cuda.core import Device
            from stillmap.cuda_core import MemoryResource
            device = Device(); device.set_current()
            resource, stream = MemoryResource(), device.create_stream()
            kept = [resource.allocate(999, stream=stream)]
            child = os.fork()
            if child == 0:
                # cuda.core warns here, of its own resources too: the driver does not work in a child.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                kept.clear(); gc.collect()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert resource.allocator.stats()["total"]["blocks"] == 1
        """)


if __name__ == "__main__":
    unittest.main()
