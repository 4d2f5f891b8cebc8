"""Describes the machine of a measurement. Not a part of its own: each part's file contains it."""

import subprocess


def work(bench):
    torch = bench.torch
    cuda = bench.device == "cuda"
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(0) if cuda else None,
        "gpu_bytes": torch.cuda.mem_get_info()[1] if cuda else None,
        "driver": driver_version() if cuda else None,
    }


def driver_version():
    """None where there is no nvidia-smi to ask."""
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.splitlines()[0].strip() if said.stdout.strip() else None
