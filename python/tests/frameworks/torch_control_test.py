"""The control server of PyTorch programs, asked by the command in processes of its own."""

import json
import signal
import textwrap
import time
import unittest

from processes import TENSORS, needs
from operators import OperatorTestCase, Program
from stillmap.__main__ import find_command

# A training loop whose arithmetic is the CPU's, because kernels need not run: its parameters, their state and what it
# reads of them are the device's memory. Nothing of it knows Stillmap but the line with use().
LOOP = """
def tell(*words):
    print(*words, flush=True)
class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.empty_like(p)
                self.state[p]["momentum"].copy_(torch.zeros(p.shape))
            momentum = self.state[p]["momentum"].cpu() * 0.9 + p.grad.cpu()
            self.state[p]["momentum"].copy_(momentum)
            p.copy_(p.cpu() - 0.01 * momentum)
def train(steps, on_step=lambda n: None):
    torch.manual_seed(3)
    weight = torch.nn.Parameter(torch.randn(512, 1024).cuda())
    bias = torch.nn.Parameter(torch.randn(512).cuda())
    optimizer = Momentum([weight, bias])
    for n in range(steps):
        x = torch.randn(8, 1024)
        w, b = (p.detach().cpu().requires_grad_() for p in (weight, bias))
        loss = torch.nn.functional.linear(x, w, b).square().mean()
        loss.backward()
        weight.grad, bias.grad = w.grad.cuda(), b.grad.cuda()
        optimizer.step()
        on_step(n)
        yield loss.item()
"""
TRAINING = TENSORS + LOOP
OWN = "import torch\n" + LOOP


@needs("torch")
class Control(OperatorTestCase):
    def torch_program(self, code, *arguments, **environment):
        return Program(self, TRAINING + textwrap.dedent(code), *arguments, **environment)

    def own_program(self, code, *arguments, **options):
        """One of PyTorch alone."""
        return Program(self, OWN + textwrap.dedent(code), *arguments, **options)

    def servers_of(self, program, *folders):
        return [t["socket"] for t in self.task("list", *folders)["tasks"] if t["pid"] == program.pid]

    def check_a_loop(self, start, setup, tag, operate, **options):
        """Suspends, resumes and saves a training loop three times: its losses are those of an undisturbed one."""
        plain = start("tell(list(train(200)))")
        undisturbed = json.loads(plain.line(120))
        plain.wait(timeout=60, quiet=False)
        program = start(setup + "\nimport os\ntell(os.getpid())\ntell(list(train(200, lambda n: tell('step', n))))", **options)
        program.pid = int(program.line(60))
        while program.line(60) != "step 20":
            pass
        address = "@stillmap-%d.control" % program.pid
        # The parameters, and their momenta.
        self.assertGreaterEqual(self.task("status", address)["allocator"]["live_bytes"], 2 * 4 * (512 * 1024 + 512))
        self.assertEqual(self.servers_of(program), [address])
        for round in range(3):
            before = self.task("status", address)
            self.assertEqual([t["tag"] for t in before["tags"]], [tag])
            self.task("suspend", address, tag, "--to", "file" if round == 1 else "pinned")
            away = self.task("status", address)
            self.assertEqual(away["tags"][0]["mapped_bytes"], 0)
            # What the driver says: all that was mapped is free.
            self.assertGreaterEqual(away["free_bytes"], before["free_bytes"] + before["tags"][0]["mapped_bytes"])
            operate(program, address)
            self.task("resume", address, tag)
            image = self.path("%d.smi" % round)
            self.assertGreater(self.task("snapshot", address, "--tag", tag, "-o", image)["contents_bytes"], 0)
        while not (line := program.line(60)).startswith("["):
            pass
        self.assertEqual(json.loads(line), undisturbed)
        program.wait(timeout=60, quiet=False)

    def test_a_training_loop_is_suspended_saved_and_resumed(self):
        def operate(_, address):
            self.assertIn("suspended", self.task("snapshot", address, "--all", "-o", self.path("x.smi"), expect=4))

        self.check_a_loop(self.torch_program, "st.use(control=True, tag='train')", "train", operate)

    def test_a_training_loop_that_was_not_changed(self):
        # The same loop by `stillmap run --control`: PyTorch's own allocator, and nothing that knows Stillmap.
        def operate(program, _):
            while not program.lines.empty():
                program.line()
            time.sleep(0.2)
            self.assertTrue(program.lines.empty(), "it stands still")

        self.check_a_loop(self.own_program, "", "program", operate,
                          prefix=[find_command(), "run", "--control", "--quiet", "--"])

    def test_it_stops_nowhere_else_than_after_a_step(self):
        program = self.torch_program("""
        st.use(control=True)
        for n, loss in enumerate(train(1000)):
            if n == 3:
                tell("in the middle")
                sys.stdin.readline()
        """)
        self.assertEqual(program.line(60), "in the middle")
        address, = self.servers_of(program)
        shell = self.start_task("suspend", address, "--all")
        self.until(lambda: self.job(address) is not None)
        time.sleep(0.3)
        self.assertIsNone(shell.poll(), "the request waits for the next step")
        program.say()
        said = shell.communicate(timeout=30)[0]
        self.assertEqual(shell.returncode, 0, said)
        self.task("resume", address, "--all")
        program.process.send_signal(signal.SIGKILL)

    def test_an_inference_loop_with_pools_and_the_variable(self):
        program = self.torch_program("""
        pool = st.pool("kv")
        with pool.use():
            kept = filled(40 * MiB, 5)
        outside = filled(8 * MiB, 6)
        tell("ready")
        n = 0
        stopping = False
        import threading
        def stop():
            global stopping
            sys.stdin.readline()
            stopping = True
        threading.Thread(target=stop, daemon=True).start()
        while not stopping:
            assert right(kept, 5) and right(outside, 6)
            st.safe_point()
            n += 1
        tell("right")
        """, STILLMAP_CONTROL=self.path("inference.control"))
        self.assertEqual(program.line(60), "ready")
        self.assertEqual(self.servers_of(program, self.folder), [self.path("inference.control")])
        address = self.path("inference.control")
        for _ in range(2):
            self.task("suspend", address, "kv")
            self.assertEqual(self.suspended_bytes(address), 40 << 20)
            self.task("resume", address, "kv")
            self.task("snapshot", address, "--all", "-o", self.path("kv.smi"), "--replace")
        program.say()
        self.assertEqual(program.line(), "right")
        program.wait(timeout=60, quiet=False)

    def test_no_server_that_nobody_asked_for(self):
        for options, value in (("", ""), ("", "0"), ("control=False", "1")):
            program = self.torch_program("""
            st.use(%s)
            kept = filled(MiB)
            tell("ready")
            sys.stdin.readline()
            """ % options, STILLMAP_CONTROL=value)
            self.assertEqual(program.line(60), "ready")
            self.assertEqual(self.servers_of(program), [])
            program.say()
            program.wait(timeout=60, quiet=False)

    def test_where_a_program_cannot_be_stopped(self):
        program = self.torch_program("""
        st.use(control=True)
        kept = filled(MiB)
        def stopped():
            while not st._control._native._safe_point_requests(): pass
            st.safe_point()
        def ranks():
            torch.distributed.is_initialized = lambda: True
            torch.distributed.get_world_size = lambda: 4
            stopped()
            torch.distributed.is_initialized = lambda: False
        def shared():
            def refuse(operation, tag, device): raise stillmap.BusyError(f"{tag} is shared")
            kept, st._control._multiprocessing.refuse_shared = st._control._multiprocessing.refuse_shared, refuse
            stopped()
            st._control._multiprocessing.refuse_shared = kept
        def captured():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                stopped()
            tell("captured")
            stopped()
        for case in (ranks, shared, captured):
            tell(case.__name__)
            case()
        """)
        self.assertEqual(program.line(60), "ranks")
        address, = self.servers_of(program)
        self.assertIn("one of 4 ranks", self.task("suspend", address, "--all", expect=5))
        self.assertEqual(program.line(), "shared")
        self.assertIn("torch is shared", self.task("suspend", address, "--all", expect=5))
        self.assertEqual(program.line(), "captured")
        shell = self.start_task("suspend", address, "--all")
        self.assertEqual(program.line(), "captured")
        said = shell.communicate(timeout=30)[0]
        self.assertEqual(shell.returncode, 0, said)
        self.task("resume", address, "--all")
        program.wait(timeout=60, quiet=False)

    def test_what_is_wrong_with_the_address(self):
        self.run_python(TENSORS + textwrap.dedent("""
        import warnings
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            st.use(control="/none/a.control")
            kept = filled(MiB)
            for _ in range(1000): pass
            assert right(kept)
        assert any("no control server" in str(w.message) and "/none/a.control" in str(w.message) for w in seen), seen
        try:
            st.use(control=True)
        except stillmap.BusyError as e:
            assert "other options" in str(e)
        """), cwd=self.folder, timeout=120, quiet=False)
        self.run_python(TENSORS + textwrap.dedent("""
        try:
            st.use(control="")
        except stillmap.InvalidArgumentError as e:
            assert "empty" in str(e)
        else:
            raise SystemExit("no error")
        """), cwd=self.folder, timeout=120, quiet=False)

    def test_two_devices(self):
        program = self.torch_program("""
        if torch.cuda.device_count() < 2:
            tell("one device")
            sys.exit()
        st.use(control=sys.argv[1] + "/train.control")
        kept = [torch.empty(MiB, dtype=torch.uint8, device=f"cuda:{n}") for n in range(2)]
        tell("ready")
        import threading
        going = True
        threading.Thread(target=lambda: (sys.stdin.readline(), globals().update(going=False)), daemon=True).start()
        while going: st.safe_point()
        """, self.folder, HOSTCUDA="profile=multi:2,kernels=skip,memory=4G")
        if program.line(60) == "one device":
            program.wait(timeout=60, quiet=False)
            self.skipTest("one device")
        addresses = [self.path("train.control"), self.path("train.1.control")]
        self.assertEqual(sorted(self.servers_of(program, self.folder)), sorted(addresses))
        for address in addresses:
            self.task("suspend", address, "--all")
        for address in addresses:
            self.task("resume", address, "--all")
        program.say()
        program.wait(timeout=60, quiet=False)


if __name__ == "__main__":
    unittest.main()
