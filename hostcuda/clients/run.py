#!/usr/bin/env python3
"""Runs other people's programs on hostcuda, and writes a table of what passed and why the rest did not.

    hostcuda/clients/run.py --libraries FOLDER [CLIENT...]

Each client is installed from PyPI at a pinned version, in an environment of its own below --work (out/clients).
FOLDER is an installed hostcuda with the command `hostcuda`, or what hostcuda/python/wheel.sh --stage-only writes.
`--stillmap LIBRARY` adds PyTorch on libstillmap_torch.so. The table goes to --table. `--prefix COMMAND` runs each
client under a command, and `--outcomes FILE` writes the names of the tests that failed, to compare two such runs.

Exit status: 0 when each failure has an explanation below, 1 when one has none, 2 when nothing could be run.
"""
import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIME_LIMIT = 900  # seconds, of one command

RUNTIME = "has a static CUDA runtime, which needs undocumented tables of the driver"
RESULTS = "needs the results of a kernel"
NUMBA = [  # (pattern of a test, why it fails)
    (r"cudapy\.test_ipc", "Numba reads a field of an IPC handle that cuda-bindings 13.5.0 does not have"),
    (r"TestReduction|test_coop_syncwarp|TestCudaArray\.test_array_reshape", "needs warps, or C++ linked to a kernel of Numba"),
    (r"TestCudaArrayInterface\.test_fortran_contiguous", "needs CuPy, which has a static CUDA runtime"),
    (r"TestCudaDriver.test_cuda_(core_stream|driver)_", "needs the results of a kernel that it has as PTX"),
    (r"test_linking_(cu|eager|lazy)|TestModuleCallbacks|test_device_arch_specific",
     "needs the results of CUDA C++ that is linked to a kernel of Numba"),
    (r"TestCoreContiguous", "needs CuPy, which has a static CUDA runtime"),
]

CORE = [
    (r"test_the_results_of_a_kernel", RESULTS),
    (r"test_(managed_memory|pinned_pool) \(.*\.Memory", "not offered: pools of managed and of host memory"),
    (r"test_bus|test_the_runtime_finds_a_device", RUNTIME),
]
PYCUDA = [
    (r"simple_kernel|vector_types|streamed_kernel|test_gpuarray |prepared_invocation|pass_cai_array", RESULTS),
    (r"test_recursive_launch|test_jit_link_module", "not offered: the linker of the driver (`cuLink*`)"),
]
TINYGRAD = [(r"TestTiny::test_(beam|cat|elu|gem[mv]|hgemm|jit|plus\w*|sum|symbolic\w*) ", RESULTS)]
WARP = [(r"exit status 1: RuntimeError: Failed to allocate \d+ bytes on device", RUNTIME)]
CUPY = [(r"exit status 1: .*CUDARuntimeError: cudaErrorNotSupported", RUNTIME)]

# Programs whose recordings are in bench/traces.
RECORDED = ("gpt2_large", "gpt2_large_checkpointed", "llama_1b", "llama_1b_variable", "llama_3b_checkpointed",
            "resnet50", "diffusion_unet")

# `folder` is below that of the client. `source` is a source distribution, whose files go to its folder `source`;
# `build` is called with the folder and the options when all is there.
# `kernels` is the option of `hostcuda run`. `dryrun` are those of `hostcuda dryrun`, which then takes its place.
Command = collections.namedtuple("Command", "name arguments environment config folder dryrun kernels",
                                 defaults=({}, "", "", None, "skip"))
Client = collections.namedtuple("Client", "packages commands explanations source build", defaults=("", None))
# Numba's tests of what allocates, copies, shares and waits for memory, with kernels or without.
NUMBA_MEMORY = ["numba.cuda.tests.cudapy.test_" + name for name in (
    "array", "array_args", "cuda_array_interface", "device_array_capture", "forall", "gufunc", "ipc", "multigpu",
    "multiprocessing", "multithreads", "record_dtype", "reduction", "retrieve_autoconverted_arrays", "stream_api", "sync",
    "vectorize")]
NO_TESTS = "uses of it by a program of ours: PyPI has none of its own tests"


def recordings():
    program = str(HERE / "torch_recording.py")
    return [Command("the peak of %s is within 1 %% of its recording's" % name, [program, name], config="unbacked")
            for name in RECORDED]


def torch(version, packages, stillmap):
    new = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    pool = {name: "backend:cudaMallocAsync" for name in new}
    tensors, training, graphs = (str(HERE / name) for name in (
        "torch_tensors.py", "torch_training.py", "torch_graphs.py"))
    commands = [
        Command("10,000 tensors, native allocator", [tensors, "native"]),
        Command("10,000 tensors, expandable segments", [tensors, "expandable"], new),
        Command("10,000 tensors, cudaMallocAsync", [tensors, "async"], pool),
        Command("training a transformer", [training, "transformer"]),
        Command("training with convolutions", [training, "convolutions"]),
    ]
    if stillmap:
        commands += [
            Command("10,000 tensors, Stillmap as CUDAPluggableAllocator", [tensors, "stillmap", stillmap]),
            Command("10,000 tensors, Stillmap in a MemPool", [tensors, "mempool", stillmap]),
            Command("120 CUDA graphs of copies, Stillmap as CUDAPluggableAllocator", [graphs, "stillmap", stillmap]),
        ]
    capture = "unbacked,vmm_in_capture=allow"
    commands += [
        Command("120 CUDA graphs of copies, native allocator", [graphs, "native"]),
        Command("training as a CUDA graph, native allocator", [training, "graph"], config=capture),
        Command("training as a CUDA graph, expandable segments", [training, "graph"], new, capture),
        Command("training as a CUDA graph, cudaMallocAsync", [training, "graph"], pool, capture),
    ]
    two = ["-m", "torch.distributed.run", "--nproc-per-node", "2", str(HERE / "torch_distributed.py")]
    commands += [Command("a dry run of two processes with two devices: " + what, [*two, kind],
                         dryrun=["--gpus", "2", "--allocator", allocator])
                 for kind, what, allocator in (
                     ("ddp", "DistributedDataParallel", "native"), ("fsdp", "FullyShardedDataParallel", "native"),
                     ("fully_shard", "fully_shard", "native"), ("fully_shard", "fully_shard, expandable segments",
                                                                "expandable"))]
    # NVIDIA's libraries are not installed: hostcuda's take their place.
    return Client([["--no-deps", "torch==" + version], packages], commands, [])


ABSENT = [
    "The tests of cuda.core and cuda.bindings: PyPI has neither a source distribution of them nor wheels with tests.",
    "PyCUDA's `test_gpuarray.py` and `test_cumath.py`: they compare the results of kernels.",
    "tinygrad's other tests: its source distribution has `test_tiny.py` only.",
    "The tests of Warp, which are in its wheel, and of CuPy: neither starts.",
]


def toolkit(folder):
    """Where the packages of a CUDA toolkit are in an environment."""
    return next(folder.glob("lib/*/site-packages/nvidia/cu13"), None)


def build_pycuda(folder, options):
    link = folder / "link"
    link.mkdir(exist_ok=True)
    (link / "libcuda.so").unlink(missing_ok=True)
    (link / "libcuda.so").symlink_to(options.driver)
    cuda = toolkit(folder)
    for command in (["configure.py", "--cuda-root=%s" % cuda, "--cuda-inc-dir=%s/include" % cuda,
                     "--cudadrv-lib-dir=%s" % link],
                    ["-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "."]):
        subprocess.run([folder / "bin/python", *command], check=True, cwd=folder / "source")


def python_clients():
    """Those that use the driver from Python, without PyTorch."""
    cuda = ["nvidia-cuda-nvrtc==13.5.37", "numpy==2.4.6"]
    compiler = cuda + ["nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-crt==13.5.37", "nvidia-cuda-runtime==13.5.37", "pytest"]
    tests = ["-m", "pytest", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider"]
    zeros = "import {0}; print({1})"
    return {
        "cuda-core 1.2.2": Client([["cuda-core==1.2.2", "cuda-bindings==13.5.0", *cuda]],
                                  [Command(NO_TESTS, [str(HERE / "cuda_core_uses.py")])], CORE),
        "cuda-bindings 13.5.0": Client([["cuda-bindings==13.5.0", *cuda]],
                                       [Command(NO_TESTS, [str(HERE / "cuda_bindings_uses.py")])], CORE),
        "PyCUDA 2026.1": Client(
            [[*compiler, "nvidia-curand==10.4.*", "mako", "pytools", "platformdirs", "setuptools", "wheel"]],
            [Command("its own tests of the driver", [*tests, "test_driver.py"], config="memory=2G",
                     folder="source/test")],
            PYCUDA, "pycuda==2026.1", build_pycuda),
        "tinygrad 0.14.0": Client(
            [["tinygrad==0.14.0", *compiler]],
            [Command("its own tests, those that its source distribution has", [*tests, "test/test_tiny.py"],
                     {"DEV": "CUDA", "CUDA": "1"}, "memory=4G", "source")],
            TINYGRAD, "tinygrad==0.14.0"),
        "Warp 1.19.0": Client(
            [["warp-lang==1.19.0", *cuda]],
            [Command("whether it starts", ["-c", zeros.format("warp", "warp.zeros(9, device='cuda:0').numpy()")])],
            WARP),
        "CuPy 14.2.0": Client([["cupy-cuda13x==14.2.0", *cuda]],
                              [Command("whether it starts", ["-c", zeros.format("cupy", "cupy.zeros(9)")])], CUPY),
    }


def clients(stillmap):
    needed = ["numpy", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "filelock", "setuptools"]
    newest = torch("2.15.0", needed + ["nvidia-cuda-nvrtc==13.*"], stillmap)
    newest.commands.extend(recordings())
    return {
        "numba-cuda 0.30.4": Client(
            [["numba-cuda[cu13]==0.30.4", "numba==0.68.1", "cuda-bindings==13.5.0", "cuda-core==1.2.2", "pytest",
              "filecheck", "psutil", "cffi", "ml_dtypes"]],
            [Command("its own tests of the driver, with `--kernels numba`",
                     ["-m", "numba.runtests", "-v", "numba.cuda.tests.cudadrv"], config="memory=4G", kernels="numba"),
             Command("its own tests of arrays in memory, with `--kernels numba`",
                     ["-m", "numba.runtests", "-v", *NUMBA_MEMORY], config="memory=4G", kernels="numba")],
            NUMBA),
        **python_clients(),
        "PyTorch 2.8.0": torch("2.8.0", needed, stillmap),
        "PyTorch 2.15.0": newest,
    }


def unpack(requirement, python, folder):
    """The files of a source distribution, without the folder that they are in."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--no-binary", requirement.split("==")[0], "--dest", place, requirement], check=True)
        archive = next(pathlib.Path(place).iterdir())
        subprocess.run(["tar", "xf", archive, "-C", folder, "--strip-components=1"], check=True)


def prepare(client, folder, options=None):
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        for packages in client.packages:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
                           check=True)
        if client.source:
            (folder / "source").mkdir()
            unpack(client.source, python, folder / "source")
        if client.build:
            client.build(folder, options)
        (folder / "ready").touch()
    return python


def crash(status):
    """Tests that have all run end with 0 or 1, unless the process ends badly."""
    return [] if status in (0, 1) else ["exit status %d after the tests" % status]


def count(text, status):
    """Passed, skipped, and the names of failed tests; a program without tests is one."""
    summary = re.search(r"^(?:=+ )?((?:\d+ \w+(?:, )?)+) in [\d.]+s", text, re.M)  # of pytest
    if summary:
        number = collections.defaultdict(int, {kind: int(n) for n, kind in re.findall(r"(\d+) (\w+)", summary.group(1))})
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.*)$", text, re.M) + crash(status)
        return number["passed"], number["skipped"] + number["xfailed"], failed
    ran = re.search(r"^Ran (\d+) tests? in", text, re.M)
    if not ran:
        last = text.strip().splitlines()[-1:]
        return (1, 0, []) if status == 0 else (0, 0, [": ".join(["exit status %d" % status, *last])])
    # A test whose subtests fail is one.
    failed = list(dict.fromkeys(re.findall(r"^(?:FAIL|ERROR): (\S+ \(\S+\)|.*)", text, re.M)))
    end = re.search(r"^(?:OK|FAILED) \((.*)\)$", text, re.M)
    skipped = sum(int(n) for n in re.findall(r"(?:skipped|expected failures)=(\d+)", end.group(1) if end else ""))
    return int(ran.group(1)) - len(failed) - skipped, skipped, failed + crash(status)


def prefix(options, log):
    """The words of --prefix; `{}` in them stands for the file of what the client prints."""
    return [word.replace("{}", str(log)) for word in shlex.split(options.prefix)]


def run(command, python, options, log):
    environment = dict(os.environ, PYTHONNOUSERSITE="1", **command.environment)
    cuda = toolkit(python.parents[1])
    if cuda and (cuda / "bin/nvcc").exists():
        environment.update(PATH="%s:%s" % (cuda / "bin", environment["PATH"]), CUDA_PATH=str(cuda))
    libraries = [str(path.parent) for path in python.parents[1].glob("lib/*/site-packages/nvidia/*/lib/libnvrtc.so.*")]
    environment["LD_LIBRARY_PATH"] = ":".join(libraries[:1])
    environment.setdefault("STILLMAP_DRIVER", str(options.driver))
    if command.dryrun:
        arguments = [*options.launcher, "dryrun", *command.dryrun]
        environment["PYTHONPATH"] = str(options.libraries.absolute().parent)  # the package with the dry run
    else:
        arguments = [*options.launcher, "run", "--kernels", command.kernels]
    if command.config:
        arguments += ["--config", command.config]
    try:
        done = subprocess.run([*arguments, "--", *prefix(options, log), python, *command.arguments], env=environment,
                              timeout=TIME_LIMIT,
                              cwd=python.parents[1] / command.folder if command.folder else None, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        text, status = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        text, status = (late.stdout or b"").decode(errors="replace"), 124
    log.write_text(text)
    return count(text, status)


def explain(test, explanations):
    for pattern, reason in explanations:
        if re.search(pattern, test):
            return reason
    return None


def find_libraries(options):
    folder = options.libraries.resolve()
    for launcher, libraries in ((folder / "hostcuda", folder), (folder / "launcher.py", folder / "lib")):
        if launcher.exists() and (libraries / "libcuda.so.1").exists():
            options.launcher, options.driver = [sys.executable, str(launcher)], libraries / "libcuda.so.1"
            return True
    return False


def main():
    parser = argparse.ArgumentParser(description="Runs other people's programs on hostcuda.")
    parser.add_argument("--libraries", type=pathlib.Path, required=True)
    parser.add_argument("--stillmap", metavar="LIBRARY", help="libstillmap_torch.so")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "out/clients")
    parser.add_argument("--table", type=pathlib.Path, help="default: results.md here; with --prefix: none")
    parser.add_argument("--prefix", metavar="COMMAND", default="",
                        help="a command and its options, in one word, which gets each client as its last arguments; {} in "
                        "it stands for the file of what the client prints")
    parser.add_argument("--outcomes", metavar="FILE", type=pathlib.Path,
                        help="write what passed, and the names of what failed, as JSON")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="the beginning of a name; default: all")
    options = parser.parse_args()
    if not find_libraries(options):
        parser.error("no hostcuda in %s: neither hostcuda nor launcher.py beside its libraries" % options.libraries)
    stillmap = str(pathlib.Path(options.stillmap).resolve()) if options.stillmap else None
    chosen = {name: client for name, client in clients(stillmap).items()
              if not options.clients or any(name.lower().startswith(c.lower()) for c in options.clients)}
    if not chosen:
        parser.error("no such client; there are: " + ", ".join(clients(None)))

    rows, reasons, outcomes, unexplained = [], [], [], 0
    for name, client in chosen.items():
        folder = options.work.resolve() / name.replace(" ", "-")
        print("%s: installing" % name, flush=True)
        python = prepare(client, folder, options)
        why = collections.Counter()
        for number, command in enumerate(client.commands):
            passed, skipped, failed = run(command, python, options, folder / ("log%d" % number))
            rows.append((name, command.name, passed, skipped, len(failed)))
            outcomes.append({"client": name, "command": command.name, "passed": passed, "skipped": skipped,
                             "failed": sorted(failed), "log": str(folder / ("log%d" % number))})
            print("%s: %s: %d passed, %d skipped, %d failed" % rows[-1], flush=True)
            for test in failed:
                reason = explain(test, client.explanations)
                unexplained += reason is None
                why[reason or "**unexplained**: %s" % test] += 1
        reasons += [(name, reason, number) for reason, number in sorted(why.items())]
    table = options.table or (None if options.prefix else HERE / "results.md")
    if table:
        write(table, rows, reasons, options.prefix)
    if options.outcomes:
        options.outcomes.write_text(json.dumps(outcomes, indent=1) + "\n")
    print("wrote %s; %d failures without an explanation" % (table or options.outcomes or "nothing", unexplained))
    return 1 if unexplained else 0


def write(path, rows, reasons, under=""):
    lines = ["# Other programs on hostcuda", "",
             "Written by `hostcuda/clients/run.py` on %s, on a machine without a GPU, with `--kernels skip` where "
             "nothing else is said, and the strict oracle. No client was changed.%s"
             % (datetime.date.today(), " Each ran under `%s`." % under if under else ""), "",
             "| client | what ran | passed | skipped | failed |", "|---|---|---:|---:|---:|"]
    lines += ["| %s | %s | %d | %d | %d |" % row for row in rows]
    if reasons:
        lines += ["", "Why tests failed:", "", "| client | reason | tests |", "|---|---|---:|"]
        lines += ["| %s | %s | %d |" % row for row in reasons]
    lines += ["", "What is not here, and why:", ""] + ["- " + text for text in ABSENT]
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
