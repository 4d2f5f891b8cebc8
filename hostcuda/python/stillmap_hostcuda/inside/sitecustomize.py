"""Loaded by Python before a program that runs under `hostcuda dryrun` or `hostcuda run --kernels numba`. The program
itself is not changed."""
import importlib.machinery
import importlib.util
import os
import sys

if "HOSTCUDA_DRYRUN_REPORT" in os.environ:
    import hostcuda_dryrun
    hostcuda_dryrun.start()
if "HOSTCUDA_NUMBA" in os.environ:
    import hostcuda_after_import
    import hostcuda_numba
    hostcuda_after_import.after_import("numba.cuda.dispatcher", hostcuda_numba.run_on_the_host)

# A sitecustomize of the program's own environment comes after this one.
_here = os.path.dirname(os.path.abspath(__file__))
_paths = [path for path in sys.path if os.path.abspath(path or ".") != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _paths)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
