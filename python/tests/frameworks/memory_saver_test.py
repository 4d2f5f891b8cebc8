"""stillmap.memory_saver in PyTorch's unmodified wheel. Kernels need not run: contents come and go by copies."""

import textwrap
import unittest

from processes import TENSORS, TestCase, needs, torch_needs

COMMON = TENSORS + """
from stillmap.memory_saver import TorchMemorySaver, configure_subprocess, torch_memory_saver as saver
def raises(kind, call):
    try:
        call()
    except kind as e:
        return str(e)
    raise AssertionError(f"no {kind}")
"""


@needs("torch")
class MemorySaver(TestCase):
    preamble = COMMON

    def test_tags_and_backups(self):
        self.program("""
        outside = filled(8 * MiB, 9)
        with saver.region("weights", enable_cpu_backup=True):
            weights, small = filled(40 * MiB, 1), filled(1000, 2)
        with saver.region("weights", enable_cpu_backup=True, cpu_backup_backend="mmap"):
            pageable = filled(40 * MiB, 3)
        with saver.region("kv"):
            kv = filled(40 * MiB, 4)
        all_of_them = [weights, small, pageable, kv]
        addresses = [t.data_ptr() for t in all_of_them]
        before = free()
        assert saver.get_cpu_backup(weights) is None, "it is not paused"
        for _ in range(2):
            saver.pause("kv")
            assert 40 * MiB <= free() - before < 80 * MiB
            assert right(weights, 1) and right(outside, 9)
            saver.pause()
            saver.pause()
            assert free() - before >= 120 * MiB
            assert right(saver.get_cpu_backup(small), 2)
            assert right(saver.get_cpu_backup(pageable, zero_copy=True), 3)
            assert saver.get_cpu_backup(kv) is None, "it has no backup"
            assert saver.get_cpu_backup(outside) is None
            saver.resume("weights")
            assert right(weights, 1) and right(small, 2) and right(pageable, 3)
            saver.resume()
            saver.resume()
            kv.copy_(known(40 * MiB, 5))
            assert right(kv, 5) and free() == before
            assert [t.data_ptr() for t in all_of_them] == addresses
        """)

    def test_a_backup_has_the_size_of_the_memory_and_goes_back(self):
        """PyTorch's pinned memory was a power of two, so that 33 MiB took 64, and stayed after resume()."""
        self.program("""
        def host():
            with open("/proc/self/status") as f:
                return next(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon:"))
        for backend in ("pinned", "mmap"):
            with saver.region(backend, enable_cpu_backup=True, cpu_backup_backend=backend):
                tensors = [filled(33 * MiB, i) for i in range(3)]
            held = st.stats(f"memory_saver/{backend}/{backend}")["total"]["committed"]
            import gc
            gc.collect()
            before = host()
            saver.pause(backend)
            paused = host() - before
            assert 99 * MiB <= paused <= 1.05 * held, (backend, paused, held)
            view = saver.get_cpu_backup(tensors[1], zero_copy=True)
            assert view.is_pinned() == (backend == "pinned")
            saver.resume(backend)
            assert right(view, 1), "it lives as long as it is used"
            del view
            gc.collect()
            left = host() - before
            assert left < 16 * MiB, (backend, left)
            assert all(right(t, i) for i, t in enumerate(tensors))
        """)

    def test_pausing_asks_for_room_first(self):
        """It ended in a SIGKILL, in a control group."""
        self.program("""
        import stillmap.memory_saver._group as group
        with saver.region("weights", enable_cpu_backup=True):
            t = filled(4 * MiB, 1)
        real = group._native._check_room_for_backup
        real(1 << 20)
        assert "/" in raises(stillmap.OutOfMemoryError, lambda: real(1 << 60))
        assert "disk" in raises(stillmap.OutOfMemoryError, lambda: group._native._pinned_memory(1 << 60, 0))
        asked = []
        class Native:
            _pinned_memory = staticmethod(group._native._pinned_memory)
            @staticmethod
            def _check_room_for_backup(nbytes):
                asked.append(nbytes)
                real(1 << 60)
        group._native = Native
        raises(stillmap.OutOfMemoryError, lambda: saver.pause("weights"))
        assert asked == [st.stats("memory_saver/weights/pinned")["total"]["committed"]], asked
        assert right(t, 1), "nothing was paused"
        """)

    def test_a_device_that_shares_host_memory_takes_no_backup_there(self):
        self.program("""
        import tempfile
        assert stillmap.device_info(0)["integrated"]
        for backend in ("pinned", "mmap"):
            with saver.region(backend, enable_cpu_backup=True, cpu_backup_backend=backend):
                t = filled(4 * MiB, 1)
            assert "enable_disk_backup" in raises(stillmap.NotSupportedError, lambda: saver.pause(backend))
            assert right(t, 1)
        saver.set_disk_backup_dir(tempfile.mkdtemp())
        with saver.region("disk", enable_disk_backup=True):
            t = filled(4 * MiB, 2)
        saver.pause("disk")
        saver.resume("disk")
        assert right(t, 2)
        """, HOSTCUDA="profile=integrated,kernels=skip,memory=4G")

    def test_a_capture_survives_a_pause(self):
        """The wait for the device invalidated it, although nothing was paused."""
        self.program("""
        with saver.region("weights", enable_cpu_backup=True):
            t = filled(4 * MiB, 1)
        graph, source, target = torch.cuda.CUDAGraph(), filled(MiB, 3), filled(MiB, 4)
        with torch.cuda.graph(graph):
            target.copy_(source)
            raises(stillmap.BusyError, lambda: saver.pause("weights"))
            raises(stillmap.BusyError, lambda: st.suspend("memory_saver/weights/pinned"))
            raises(stillmap.BusyError, lambda: st.snapshot("never.smi", ["memory_saver/weights/pinned"]))
        graph.replay()
        assert right(t, 1) and right(target, 3)
        saver.pause("weights")
        saver.resume("weights")
        assert right(t, 1)
        """)

    # Regression: PyTorch kept the segments of what was replaced, and a pause saved them.
    @torch_needs(2, 15, "tensors have segments of PyTorch's sizes")
    def test_weights_that_are_replaced(self):
        self.program("""
        with saver.region("weights", enable_cpu_backup=True):
            w = [filled(12 * MiB + n, 1) for n in range(20)]
            for n in range(20):
                w[n] = filled(13 * MiB + n, n)
            committed = st.stats("memory_saver/weights/pinned")["total"]["committed"]
            assert committed <= 1.05 * 20 * 13 * MiB + 12 * MiB, committed / MiB
        committed = st.stats("memory_saver/weights/pinned")["total"]["committed"]
        assert committed <= 1.05 * 20 * 13 * MiB, committed / MiB
        saver.pause()
        assert right(saver.get_cpu_backup(w[7]), 7)
        saver.resume()
        assert all(right(t, n) for n, t in enumerate(w))
        """)

    @torch_needs(2, 14, "of nested pools the outermost serves")
    def test_another_device_is_current(self):
        self.program("""
        with saver.region("kv"):
            with torch.cuda.device(1), saver.disable():
                own = torch.empty(12 * MiB, dtype=torch.uint8, device="cuda:0")
            kv = torch.empty(12 * MiB, dtype=torch.uint8, device="cuda:0")
        assert st.stats("memory_saver/kv/none", 0)["total"]["live"] < 24 * MiB, "the region's device is meant"
        """, quiet=False, HOSTCUDA="profile=multi:2,kernels=skip,memory=4G")

    def test_a_backup_can_be_kept(self):
        self.program("""
        with saver.region(enable_cpu_backup=True):
            t = filled(4 * MiB, 1)
        saver.retain_cpu_backup = True
        saver.pause()
        first = saver.get_cpu_backup(t, zero_copy=True).data_ptr()
        saver.resume()
        t.copy_(known(4 * MiB, 2))
        saver.pause()
        again = saver.get_cpu_backup(t, zero_copy=True)
        assert again.data_ptr() == first and right(again, 2)
        saver.resume()
        assert right(t, 2)
        """)

    def test_disk(self):
        self.program("""
        with saver.region(enable_disk_backup=True):
            t = filled(40 * MiB, 1)
        before = free()
        assert "set_disk_backup_dir" in raises(stillmap.Error, saver.pause)
        assert right(t, 1)
        saver.set_disk_backup_dir(os.path.join(sys.argv[1], "new"))
        for seed in (1, 2):
            t.copy_(known(40 * MiB, seed))
            saver.pause()
            assert free() - before >= 40 * MiB
            saver.resume()
            assert right(t, seed)
        """, self.folder)

    def test_tensors_come_and_go_while_paused(self):
        self.program("""
        with saver.region(enable_cpu_backup=True):
            gone, cached, stays = filled(40 * MiB, 1), filled(80 * MiB, 1), filled(40 * MiB, 2)
        saver.pause()
        del gone
        torch.cuda.empty_cache()
        del cached  # PyTorch keeps it, without pages, and must not hand it out
        with saver.region(enable_cpu_backup=True):
            new = filled(60 * MiB, 3)
        saver.pause()  # the new memory, too
        with saver.region(enable_cpu_backup=True):
            newest = filled(30 * MiB, 4)
        saver.resume()
        assert right(newest, 4)
        assert right(stays, 2) and right(new, 3)
        saver.pause(); saver.resume()
        assert right(stays, 2) and right(new, 3)
        """)

    def test_disable_where_pytorch_cannot(self):
        self.program("""
        from stillmap.torch import _mempools
        with saver.region(enable_cpu_backup=True):
            if not _mempools.innermost_serves():
                raises(stillmap.NotSupportedError, lambda: saver.disable().__enter__())
            inside = filled(4 * MiB, 1)
        saver.pause(); saver.resume()
        assert right(inside, 1)
        """)

    @torch_needs(2, 14, "of nested pools the outermost serves")
    def test_disable(self):
        self.program("""
        raises(stillmap.InvalidArgumentError, lambda: saver.disable().__enter__())
        with saver.region(enable_cpu_backup=True):
            inside = filled(40 * MiB, 1)
            before = free()
            saver.pause()
            with saver.disable():
                other = filled(40 * MiB, 2)
            assert right(other, 2)
            saver.resume()
            more = filled(4 * MiB, 3)
        saver.pause()
        assert right(other, 2)
        assert saver.get_cpu_backup(more) is not None, "after disable() the region goes on"
        saver.resume()
        assert right(inside, 1) and right(more, 3)
        """)

    def test_graphs(self):
        self.program("""
        stream, handle = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        source, target = filled(20 * MiB, 1), filled(20 * MiB, 2)
        graphs, middles = [torch.cuda.CUDAGraph() for _ in range(3)], []
        for graph, pool in zip(graphs, (None, handle, handle)):
            with saver.cuda_graph(graph, pool=pool, stream=stream, tag="graph"):
                middle = torch.empty_like(source)
                middle.copy_(source)
                target.copy_(middle)
            middles.append(middle.data_ptr())
            del middle
        assert middles[1] == middles[2] != middles[0], "the same pool, the same memory"
        again = torch.cuda.CUDAGraph()
        with saver.cuda_graph(again, pool=graphs[0].pool(), stream=stream, tag="graph"):
            middle = torch.empty_like(source)
            middle.copy_(source)
            target.copy_(middle)
        assert middle.data_ptr() == middles[0]
        for seed in (4, 5):
            before = free()
            saver.pause("graph")
            assert free() - before >= 40 * MiB
            saver.resume("graph")
            for graph in (*graphs, again):
                seed += 10
                source.copy_(known(20 * MiB, seed))
                graph.replay()
                torch.cuda.synchronize()
                assert right(target, seed)
        """)

    def test_a_pause_that_fails_changes_nothing(self):
        self.program("""
        with saver.region("a", enable_cpu_backup=True):
            a = filled(4 * MiB, 1)
        with saver.region("b", enable_disk_backup=True):
            b = filled(4 * MiB, 2)
        raises(stillmap.Error, saver.pause)
        assert not st.suspended() and right(a, 1) and right(b, 2)
        """)

    @torch_needs(2, 14, "of nested pools the outermost serves")
    def test_all_of_the_process(self):
        """As a training engine uses it: nothing is in a region but what must not be kept, and backward passes
        allocate on threads of PyTorch's."""
        program = """
        weights, small = filled(40 * MiB, 1), filled(1000, 2)
        with saver.region("gradients"):
            gradients = filled(40 * MiB, 3)
        x = torch.zeros(MiB, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
        on_threads = []
        def work():
            on_threads.append(filled(20 * MiB, 4))
        thread = threading.Thread(target=work); thread.start(); thread.join()
        all_of_them = [weights, small, gradients, x, x.grad, *on_threads]
        addresses = [t.data_ptr() for t in all_of_them]
        for _ in range(2):
            before = free()
            saver.pause()
            assert free() - before >= 120 * MiB, free() - before
            while_paused = filled(30 * MiB, 5)
            with saver.disable():
                beside = filled(20 * MiB, 6)
            assert right(saver.get_cpu_backup(weights), 1) and right(while_paused, 5) and right(beside, 6)
            assert saver.get_cpu_backup(x.grad) is not None, "of a backward pass"
            saver.resume()
            assert right(weights, 1) and right(small, 2) and right(on_threads[0], 4)
            assert right(while_paused, 5) and right(beside, 6)
            gradients.copy_(known(40 * MiB, 7))
            assert right(gradients, 7)
            assert [t.data_ptr() for t in all_of_them] == addresses
            later = filled(10 * MiB, 8)
            saver.pause("default")
            assert right(gradients, 7) and right(saver.get_cpu_backup(later), 8)
            saver.resume()
            assert right(later, 8)
            del while_paused, beside, later
        assert st.stats(f"memory_saver/default/{BACKEND}")["total"]["live"] >= 60 * MiB
        """
        for backend in ("pinned", "mmap"):
            self.program("import threading\nBACKEND = %r\n" % backend + textwrap.dedent(program),
                         TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1", TMS_INIT_CPU_BACKUP_BACKEND=backend)

    @torch_needs(2, 14, "of nested pools the outermost serves")
    def test_the_process_keeps_its_device(self):
        """A pause or resume while another device is the current one took the process's pool there."""
        self.program("""
        if torch.cuda.device_count() > 1:
            first = filled(4 * MiB)
            with torch.cuda.device(1):
                saver.pause()
                saver.resume()
            later = filled(40 * MiB, 2)
            saver.pause()
            assert right(saver.get_cpu_backup(later), 2)
            saver.resume()
            assert right(later, 2)
        """, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1", HOSTCUDA="profile=multi:2,kernels=skip,memory=4G")

    def test_variables(self):
        self.program("""
        assert saver.retain_cpu_backup
        with saver.region(enable_cpu_backup=True):
            t = filled(4 * MiB, 1)
        assert st.stats("memory_saver/default/mmap")["total"]["blocks"] == 1
        """, TMS_RETAIN_CPU_BACKUP="1", TMS_INIT_CPU_BACKUP_BACKEND="mmap")
        for name, value in (("TMS_INIT_ENABLE", "perhaps"), ("TMS_RETAIN_CPU_BACKUP", "2"),
                            ("TMS_INIT_CPU_BACKUP_BACKEND", "tape")):
            self.run_python(f"""
                import stillmap
                try:
                    import stillmap.memory_saver
                except stillmap.InvalidArgumentError as error:
                    assert "{name}" in str(error) and "{value}" in str(error), error
                else:
                    assert False, "no error"
            """, **{name: value})

    def test_settings(self):
        self.program("""
        for mode in ("preload", "torch"):
            saver.hook_mode = mode
        raises(ValueError, lambda: setattr(saver, "hook_mode", "other"))
        raises(ValueError, lambda: saver.region(cpu_backup_backend="mmap").__enter__())
        raises(ValueError, lambda: saver.region(enable_cpu_backup=True, enable_disk_backup=True).__enter__())
        raises(ValueError, lambda: saver.region(enable_cpu_backup=True, cpu_backup_backend="x").__enter__())
        with configure_subprocess():
            pass
        saver.pause(); saver.resume(); saver.pause("nothing of this tag"); saver.resume("nothing of this tag")
        assert saver.enabled and not saver.retain_cpu_backup
        first, second = TorchMemorySaver(), TorchMemorySaver()
        with first.region("x"):
            t = filled(MiB)
        first.pause(); first.resume(); second.pause()
        del t
        """)


if __name__ == "__main__":
    unittest.main()
