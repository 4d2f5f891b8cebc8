"""Tests in Python, on hostcuda: each is a program that runs one file of python/tests."""

def _python_test_impl(ctx):
    script = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(
        script,
        "\n".join([
            "#!/bin/sh",
            "export STILLMAP_HOSTCUDA=\"$PWD/%s\"" % ctx.file.hostcuda.short_path,
            "export PYTHONPATH=\"$PWD/python\" PYTHONDONTWRITEBYTECODE=1",
            "export PATH=\"$PWD/%s:$PATH\"" % ctx.file.command.short_path.rpartition("/")[0],
            "exec %s %s %s" % (ctx.attr.python, ctx.file.runner.short_path, ctx.attr.cases),
            "",
        ]),
        is_executable = True,
    )
    files = [ctx.file.hostcuda, ctx.file.runner, ctx.file.command] + ctx.files.package + ctx.files.srcs
    runfiles = ctx.runfiles(files = files)
    for data in [ctx.attr.package, ctx.attr.command]:
        runfiles = runfiles.merge(data[DefaultInfo].default_runfiles)
    return [
        DefaultInfo(executable = script, runfiles = runfiles),
        testing.TestEnvironment({
            "STILLMAP_DRIVER": "host",
            "HOSTCUDA": "profile=" + ctx.attr.profile,
        }),
    ]

python_test = rule(
    implementation = _python_test_impl,
    test = True,
    attrs = {
        "cases": attr.string(mandatory = True),
        "profile": attr.string(default = "h200"),
        "python": attr.string(mandatory = True),
        "package": attr.label(mandatory = True),
        "srcs": attr.label_list(allow_files = [".py"]),
        "runner": attr.label(mandatory = True, allow_single_file = [".py"]),
        "command": attr.label(mandatory = True, allow_single_file = True),
        "hostcuda": attr.label(default = Label("//hostcuda:libcuda.so.1"), allow_single_file = True),
    },
    doc = "Runs python/tests/run.py for the test files that match `cases`.",
)
