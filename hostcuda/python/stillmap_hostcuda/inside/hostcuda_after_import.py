"""Observes a module of an unmodified program."""
import importlib.abc
import importlib.util
import sys


class Finder(importlib.abc.MetaPathFinder):
    """Calls `call` with the module `wanted` once it has been imported."""

    def __init__(self, wanted, call):
        self.wanted, self.call = wanted, call

    def find_spec(self, name, path, target=None):
        if name != self.wanted:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.call(module)
        spec.loader.exec_module = exec_module
        return spec


def after_import(wanted, call):
    sys.meta_path.insert(0, Finder(wanted, call))
