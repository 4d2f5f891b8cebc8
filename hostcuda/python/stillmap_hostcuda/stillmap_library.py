"""Where Stillmap is installed: the library with its allocator for PyTorch, for dry runs on it."""
import importlib.util
import pathlib
import shutil
import subprocess

from . import launcher

LIBRARY = "libstillmap_torch.so"
# In a Python process: the module of the package stillmap, in which the allocator is. Nothing is imported.
ASK = ("import sys; sys.path[:0] = [%r]; from stillmap_hostcuda import stillmap_library; "
       "print(stillmap_library.in_this_python() or '')")


def in_this_python():
    try:
        found = importlib.util.find_spec("stillmap")
    except (ImportError, ValueError):
        return None
    folders = found.submodule_search_locations if found else None
    return next((path for folder in folders or () for path in sorted(pathlib.Path(folder).glob("_native*.so"))), None)


def in_python_of(program):
    """Of the program's own Python, which may have other packages than the one of hostcuda."""
    if not pathlib.Path(program).name.startswith("python"):
        return None
    package = str(pathlib.Path(__file__).resolve().parents[1])
    try:
        answer = subprocess.run([program, "-c", ASK % package], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return pathlib.Path(answer) if answer else None


def in_prefix():
    """Of an installation by CMake: the one that hostcuda is in, or the one of the command in PATH."""
    prefixes = []
    try:
        prefixes += list(launcher.libraries().parents)[2:3]  # PREFIX/lib/stillmap/hostcuda
    except launcher.Failure:
        pass
    command = shutil.which("stillmap")
    prefixes += [pathlib.Path(command).resolve().parents[1]] if command else []
    return next((path for prefix in prefixes for path in sorted(prefix.glob("lib*/" + LIBRARY)) +
                 sorted(prefix.glob("lib/*/" + LIBRARY)) + sorted(prefix.glob("lib/*/stillmap/" + LIBRARY))), None)


def find(program):
    """For a program by its name; None: Stillmap is not installed."""
    return in_python_of(program) or in_this_python() or in_prefix()
