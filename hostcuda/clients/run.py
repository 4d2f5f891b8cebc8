#!/usr/bin/env python3
"""Runs other people's programs on hostcuda, and writes a table of what passed and why the rest did not.

    hostcuda/clients/run.py --libraries FOLDER [CLIENT...]

Each client is installed from PyPI at a pinned version, in an environment of its own below --work (out/clients).
FOLDER is an installed hostcuda with the command `hostcuda`, or what tools/hostcuda_wheel.sh --stage-only writes.
`--stillmap LIBRARY` adds PyTorch on libstillmap_torch.so. The table goes to --table.

Exit status: 0 when each failure has an explanation below, 1 when one has none, 2 when nothing could be run.
"""
import argparse
import collections
import datetime
import os
import pathlib
import re
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIME_LIMIT = 900  # seconds, of one command

RESULTS, CUBIN = "needs the results of a kernel", "needs the contents of a compiled kernel"
NUMBA = [  # (pattern of a test, why it fails)
    (r"CudaArraySetting|test_devicearray_transpose|test_recarray|TestRecordDtypeWithStruct", RESULTS),
    (r"test_managed_array_attach|test_cudajit_in_attached|test_linking_\w+|TestMultithreaded", RESULTS),
    (r"TestCudaDriver.test_cuda_(core|driver|cache|set)_|test_device_arch_specific", RESULTS),
    (r"TestModuleCallbacks", CUBIN),
    (r"test_get_\w*mem|test_set_registers", CUBIN),
    (r"TestCoreContiguous", "needs CuPy, which has a static CUDA runtime"),
]

# Programs whose recordings are in bench/traces.
RECORDED = ("gpt2_large", "gpt2_large_checkpointed", "llama_1b", "llama_1b_variable", "llama_3b_checkpointed",
            "resnet50", "diffusion_unet")

Command = collections.namedtuple("Command", "name arguments environment config", defaults=({}, ""))
Client = collections.namedtuple("Client", "packages commands explanations")


def recordings():
    program = str(HERE / "torch_recording.py")
    return [Command("the peak of %s is within 1 %% of its recording's" % name, [program, name], config="unbacked")
            for name in RECORDED]


def torch(version, packages, stillmap):
    new = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    pool = {name: "backend:cudaMallocAsync" for name in new}
    tensors, training = str(HERE / "torch_tensors.py"), str(HERE / "torch_training.py")
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
        ]
    # NVIDIA's libraries are not installed: hostcuda's take their place.
    return Client([["--no-deps", "torch==" + version], packages], commands, [])


def clients(stillmap):
    needed = ["numpy", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "filelock", "setuptools"]
    newest = torch("2.15.0", needed + ["nvidia-cuda-nvrtc==13.*"], stillmap)
    newest.commands.extend(recordings())
    return {
        "numba-cuda 0.30.4": Client(
            [["numba-cuda[cu13]==0.30.4", "numba==0.68.1", "cuda-bindings==13.5.0", "cuda-core==1.2.2", "pytest",
              "filecheck", "psutil", "cffi", "ml_dtypes"]],
            [Command("its own tests of the driver", ["-m", "numba.runtests", "-v", "numba.cuda.tests.cudadrv"],
                     config="memory=4G")],
            NUMBA),
        "PyTorch 2.8.0": torch("2.8.0", needed, stillmap),
        "PyTorch 2.15.0": newest,
    }


def prepare(client, folder):
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        for packages in client.packages:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
                           check=True)
        (folder / "ready").touch()
    return python


def count(text, status):
    """Passed, skipped, and the names of failed tests; a program without tests is one."""
    ran = re.search(r"^Ran (\d+) tests? in", text, re.M)
    if not ran:
        return (1, 0, []) if status == 0 else (0, 0, ["exit status %d" % status])
    failed = re.findall(r"^(?:FAIL|ERROR): (.*)$", text, re.M)
    skipped = re.search(r"skipped=(\d+)", text.splitlines()[-1])
    skipped = int(skipped.group(1)) if skipped else 0
    return int(ran.group(1)) - len(failed) - skipped, skipped, failed


def run(command, python, options, log):
    environment = dict(os.environ, PYTHONNOUSERSITE="1", **command.environment)
    libraries = [str(path.parent) for path in python.parents[1].glob("lib/*/site-packages/nvidia/*/lib/libnvrtc.so.*")]
    environment["LD_LIBRARY_PATH"] = ":".join(libraries[:1])
    environment.setdefault("STILLMAP_DRIVER", str(options.driver))
    arguments = [*options.launcher, "run", "--kernels", "skip"]
    if command.config:
        arguments += ["--config", command.config]
    try:
        done = subprocess.run([*arguments, "--", python, *command.arguments], env=environment, timeout=TIME_LIMIT,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
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
    parser.add_argument("--table", type=pathlib.Path, default=HERE / "results.md")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="the beginning of a name; default: all")
    options = parser.parse_args()
    if not find_libraries(options):
        parser.error("no hostcuda in %s: neither hostcuda nor launcher.py beside its libraries" % options.libraries)
    stillmap = str(pathlib.Path(options.stillmap).resolve()) if options.stillmap else None
    chosen = {name: client for name, client in clients(stillmap).items()
              if not options.clients or any(name.lower().startswith(c.lower()) for c in options.clients)}
    if not chosen:
        parser.error("no such client; there are: " + ", ".join(clients(None)))

    rows, reasons, unexplained = [], [], 0
    for name, client in chosen.items():
        folder = options.work.resolve() / name.replace(" ", "-")
        print("%s: installing" % name, flush=True)
        python = prepare(client, folder)
        why = collections.Counter()
        for number, command in enumerate(client.commands):
            passed, skipped, failed = run(command, python, options, folder / ("log%d" % number))
            rows.append((name, command.name, passed, skipped, len(failed)))
            print("%s: %s: %d passed, %d skipped, %d failed" % rows[-1], flush=True)
            for test in failed:
                reason = explain(test, client.explanations)
                unexplained += reason is None
                why[reason or "**unexplained**: %s" % test] += 1
        reasons += [(name, reason, number) for reason, number in sorted(why.items())]
    write(options.table, rows, reasons)
    print("wrote %s; %d failures without an explanation" % (options.table, unexplained))
    return 1 if unexplained else 0


def write(path, rows, reasons):
    lines = ["# Other programs on hostcuda", "",
             "Written by `hostcuda/clients/run.py` on %s, on a machine without a GPU, with `kernels=skip` and the "
             "strict oracle. No client was changed." % datetime.date.today(), "",
             "| client | what ran | passed | skipped | failed |", "|---|---|---:|---:|---:|"]
    lines += ["| %s | %s | %d | %d | %d |" % row for row in rows]
    if reasons:
        lines += ["", "Why tests failed:", "", "| client | reason | tests |", "|---|---|---:|"]
        lines += ["| %s | %s | %d |" % row for row in reasons]
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
