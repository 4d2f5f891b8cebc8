"""Directories in memory and on disk for large files."""

import os
import shutil
import tempfile


def filesystem(path, mounts="/proc/mounts"):
    """The type of what is mounted where the path is; None where that cannot be told."""
    path, best, found = os.path.realpath(path), "", None
    try:
        with open(mounts, encoding="utf-8") as lines:
            for line in lines:
                _, point, kind = line.split()[:3]
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, found = point, kind
    except OSError:
        return None
    return found


def candidates():
    """Name, folder, and whether it has to be in memory."""
    return (("tmpfs", "/dev/shm", True), ("disk", tempfile.gettempdir(), False))


def usable(folder, in_memory, bytes_):
    """None, or why not."""
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return f"{folder} cannot be written"
    kind = filesystem(folder)
    if (kind == "tmpfs") != in_memory:
        return f"{folder} is {kind}"
    free = shutil.disk_usage(folder).free
    return None if free > bytes_ * 1.1 else f"{folder} has {free} bytes free, {bytes_} are needed"
