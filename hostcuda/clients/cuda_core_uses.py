"""Uses of cuda.core, whose own tests are not on PyPI: devices, memory resources, streams, events, graphs, memory of
another process, compiled kernels. Every byte that is copied is compared.
"""
import ctypes
import multiprocessing
import random
import unittest

import numpy as np
from cuda.core import (Buffer, Device, DeviceMemoryResource, DeviceMemoryResourceOptions, EventOptions,
                       GraphMemoryResource, LaunchConfig, LegacyPinnedMemoryResource, ManagedMemoryResource,
                       PinnedMemoryResource, Program, ProgramOptions, StreamOptions, VirtualMemoryResource, launch)
from cuda.core.graph import GraphDefinition

SIZE = 1 << 16


def words(buffer):
    """The bytes of host memory, as an array."""
    return np.ctypeslib.as_array(ctypes.cast(int(buffer.handle), ctypes.POINTER(ctypes.c_uint8)), (buffer.size,))


def pattern(seed, size=SIZE):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


class Uses(unittest.TestCase):
    def setUp(self):
        self.device = Device()
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.pinned = LegacyPinnedMemoryResource()

    def host(self, contents=None, size=SIZE):
        buffer = self.pinned.allocate(size, stream=self.stream)
        words(buffer)[:] = 0 if contents is None else contents
        return buffer

    def contents(self, buffer, stream=None):
        out = self.host(size=buffer.size)
        buffer.copy_to(out, stream=stream or self.stream)
        (stream or self.stream).sync()
        return words(out).copy()

    def check(self, resource, size=SIZE):
        """Writes, reads and fills memory of a resource."""
        buffer = resource.allocate(size, stream=self.stream)
        self.assertEqual(buffer.size, size)
        buffer.copy_from(self.host(pattern(1, size), size), stream=self.stream)
        np.testing.assert_array_equal(self.contents(buffer), pattern(1, size))
        buffer.fill(np.uint16(0x1234), stream=self.stream)
        self.assertEqual(set(self.contents(buffer).view(np.uint16)), {0x1234})
        buffer.close(self.stream)
        self.stream.sync()


class Devices(Uses):
    def test_properties(self):
        for name in dir(self.device.properties):
            if not name.startswith("_"):
                getattr(self.device.properties, name)
        self.assertEqual(len(Device.get_all_devices()), 1)
        self.assertEqual(self.device.compute_capability, (9, 0))
        self.assertTrue(self.device.name and self.device.uuid)

    def test_bus(self):
        self.assertRegex(self.device.pci_bus_id, r"^\w{4}:\w\w:\w\w\.\w$")

    def test_context_of_a_stream(self):
        self.assertEqual(self.stream.device.device_id, self.device.device_id)
        self.assertEqual(self.stream.context, self.device.context)


class Memory(Uses):
    def test_pool_of_the_device(self):
        self.check(self.device.memory_resource)

    def test_pool_of_its_own(self):
        resource = DeviceMemoryResource(self.device)
        self.check(resource)
        for name in dir(resource.attributes):
            if not name.startswith("_"):
                getattr(resource.attributes, name)

    def test_virtual_memory(self):
        self.check(VirtualMemoryResource(self.device), 2 << 20)  # of whole pages

    def test_managed_memory(self):
        self.check(ManagedMemoryResource())

    def test_pinned_pool(self):
        buffer = PinnedMemoryResource().allocate(SIZE, stream=self.stream)
        self.assertTrue(buffer.is_host_accessible and buffer.is_device_accessible)

    def test_many_buffers_on_three_streams(self):
        dice, streams = random.Random(3), [self.device.create_stream() for _ in range(3)]
        live = []
        for number in range(500):
            stream = dice.choice(streams)
            size = dice.choice((1, 100, 5000, 70000))
            buffer = self.device.allocate(size, stream=stream)
            buffer.copy_from(self.host(pattern(number, size), size), stream=stream)
            live.append((buffer, number, stream))
            if len(live) > 50:
                buffer, number, stream = live.pop(dice.randrange(len(live)))
                np.testing.assert_array_equal(self.contents(buffer, stream), pattern(number, buffer.size))
                buffer.close(stream)

    def test_the_device_is_full(self):
        with self.assertRaisesRegex(Exception, "OUT_OF_MEMORY"):
            self.device.allocate(1 << 50, stream=self.stream)
        self.check(self.device.memory_resource)


class Order(Uses):
    def test_events(self):
        timed = EventOptions(enable_timing=True) if "enable_timing" in EventOptions.__dataclass_fields__ else \
            EventOptions(timing_enabled=True)
        first = self.stream.record(options=timed)
        second = self.stream.record(options=timed)
        second.sync()
        self.assertTrue(first.is_done and second.is_done)
        self.assertGreaterEqual(second - first, 0)

    def test_streams_wait(self):
        other = self.device.create_stream(options=StreamOptions(nonblocking=True, priority=0))
        buffer = self.device.allocate(SIZE, stream=self.stream)
        buffer.copy_from(self.host(pattern(5)), stream=self.stream)
        other.wait(self.stream)
        np.testing.assert_array_equal(self.contents(buffer, other), pattern(5))
        self.stream.wait(other)
        buffer.close(self.stream)


class Graphs(Uses):
    def test_a_captured_graph(self):
        buffer, called = self.device.allocate(SIZE, stream=self.stream), []
        source = self.host(pattern(6))
        self.stream.sync()
        builder = self.device.create_graph_builder().begin_building()
        buffer.copy_from(source, stream=builder)
        builder.callback(lambda: called.append(1))
        graph = builder.end_building().complete()
        self.assertEqual(called, [])
        graph.launch(self.stream)
        np.testing.assert_array_equal(self.contents(buffer), pattern(6))
        self.assertEqual(called, [1])

    def test_a_captured_allocation(self):
        resource = GraphMemoryResource(self.device)
        out = self.host()
        builder = self.device.create_graph_builder().begin_building()
        buffer = resource.allocate(SIZE, stream=builder)
        buffer.fill(7, stream=builder)
        buffer.copy_to(out, stream=builder)
        buffer.close(builder)
        graph = builder.end_building().complete()
        for _ in range(3):
            words(out)[:] = 0
            graph.launch(self.stream)
            self.stream.sync()
            self.assertEqual(set(words(out)), {7})

    def test_a_graph_of_nodes(self):
        out = self.host()
        definition = GraphDefinition()
        memory = definition.allocate(SIZE)
        done = memory.memset(memory.dptr, 9, SIZE).memcpy(int(out.handle), memory.dptr, SIZE).deallocate(memory.dptr)
        self.assertEqual(len(definition.nodes()), 4)
        self.assertEqual(len(done.pred), 1)
        graph = definition.instantiate()
        graph.launch(self.stream)
        self.stream.sync()
        self.assertEqual(set(words(out)), {9})


def fill_in_another_process(resource, descriptor, value):
    Device().set_current()
    stream = Device().create_stream()
    buffer = Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
    buffer.fill(value, stream=stream)
    stream.sync()
    buffer.close()


class Processes(Uses):
    def test_memory_of_a_pool_is_shared(self):
        resource = DeviceMemoryResource(self.device,
                                        DeviceMemoryResourceOptions(max_size=1 << 22, ipc_enabled=True))
        buffer = resource.allocate(SIZE, stream=self.stream)
        buffer.fill(1, stream=self.stream)
        self.stream.sync()
        child = multiprocessing.get_context("spawn").Process(
            target=fill_in_another_process, args=(resource, buffer.ipc_descriptor, 33))
        child.start()
        child.join()
        self.assertEqual(child.exitcode, 0)
        self.assertEqual(set(self.contents(buffer)), {33})


class Kernels(Uses):
    CODE = 'extern "C" __global__ void fill(int *a, int n) { if (threadIdx.x < n) a[threadIdx.x] = n; }'

    def kernel(self, kind):
        program = Program(self.CODE, code_type="c++", options=ProgramOptions(arch="sm_90"))
        return program.compile(kind).get_kernel("fill")

    def test_a_launch_is_accepted(self):
        buffer = self.device.allocate(SIZE, stream=self.stream)
        for kind in ("ptx", "cubin"):
            launch(self.stream, LaunchConfig(grid=1, block=32), self.kernel(kind), buffer, np.int32(3))
        self.stream.sync()

    def test_the_results_of_a_kernel(self):
        buffer = self.device.allocate(SIZE, stream=self.stream)
        buffer.fill(0, stream=self.stream)
        launch(self.stream, LaunchConfig(grid=1, block=32), self.kernel("cubin"), buffer, np.int32(3))
        self.assertEqual(list(self.contents(buffer).view(np.int32)[:4]), [3, 3, 3, 0])


if __name__ == "__main__":
    unittest.main()
