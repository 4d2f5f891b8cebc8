"""Runs torch_memory_saver's own examples with stillmap.memory_saver in its place, in both hook modes.

    memory_saver_own_examples.py EXAMPLES ARCHIVE

EXAMPLES: simple.py, cpu_backup.py, disk_backup.py, multi_device_torch_mode.py of its repository's test/examples/,
which PyPI does not have. ARCHIVE: its source archive from PyPI, for the modules that the examples import besides.
In an environment with PyTorch and nvidia-ml-py, on hostcuda with kernels=skip and the profile multi:2.

No kernel runs on hostcuda, so values are written by copies and compared on the host. EDITS lists what else differs.
Examples that look at what a kernel computed or call C functions of its library are left out.
"""

import pathlib
import re
import runpy
import subprocess
import sys
import tarfile
import tempfile

EXAMPLES = (("simple", "preload"), ("simple", "torch"), ("cpu_backup", "preload"), ("cpu_backup", "torch"),
            ("disk_backup", "preload"), ("disk_backup", "torch"), ("multi_device_torch_mode", "torch"))
# Pattern and replacement; the reason.
EDITS = {
    "simple": ((r"1_000_000_000_0", "1_200_000_000"),),  # hostcuda's memory is the host's
    "disk_backup": ((r"assert (?:len\(files\)|total) >= .*", "pass"),),  # our files have no names in the folder
}


def without_kernels():
    import torch

    for name in ("full", "randn"):
        def on_host(*arguments, device, made=getattr(torch, name), **named):
            return made(*arguments, **named).to(device)

        setattr(torch, name, on_host)
    equal = torch.equal
    torch.equal = lambda a, b: equal(a.cpu(), b.cpu())
    torch.Tensor.fill_ = lambda self, value: self.copy_(torch.empty(self.shape, dtype=self.dtype).new_full(
        self.shape, value))


def run_one(file, hook_mode, modules):
    sys.path.insert(0, modules)
    without_kernels()
    runpy.run_path(file)["run"](hook_mode=hook_mode)


def main():
    examples, archive = pathlib.Path(sys.argv[1]), sys.argv[2]
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        modules = pathlib.Path(folder, "torch_memory_saver")
        modules.mkdir()
        (modules / "__init__.py").write_text("from stillmap.memory_saver import *\n")
        with tarfile.open(archive) as source:
            top = source.getnames()[0].split("/")[0]
            for name in ("testing_utils.py", "utils.py"):
                (modules / name).write_bytes(source.extractfile("%s/torch_memory_saver/%s" % (top, name)).read())
        for name, hook_mode in EXAMPLES:
            file = pathlib.Path(folder, name + ".py")
            text = (examples / file.name).read_text()
            for pattern, replacement in EDITS.get(name, ()):
                text, found = re.subn(pattern, replacement, text)
                assert found, "%s has no line like %s" % (file.name, pattern)
            file.write_text(text)
            done = subprocess.run([sys.executable, __file__, "--one", str(file), hook_mode, folder], check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            print("| %s | %s | %s |" % (name, hook_mode, "passed" if done.returncode == 0 else "failed"), flush=True)
            if done.returncode != 0:
                print(done.stdout[-2000:])
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(run_one(*sys.argv[2:]) if sys.argv[1] == "--one" else main())
