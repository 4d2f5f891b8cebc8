"""The same list of third-party code for Bazel's modules. tools/build/dependencies.bzl"""

load("//tools/build:dependencies.bzl", "declare_dependencies")

def _impl(_module_ctx):
    declare_dependencies()

third_party = module_extension(implementation = _impl)
