"""Targets whose sources are compiled several at a time, as CMake's UNITY_BUILD does.

Most of the time that a source takes to compile goes into the headers that it includes. Where one file
includes several sources, they are read once. The names in unnamed namespaces must differ for that."""

load("@rules_cc//cc:defs.bzl", "cc_library")

# Sources at most; more make a build with many cores slower.
_BATCH = 16

def _source_batch_impl(ctx):
    batch = ctx.actions.declare_file(ctx.label.name + ".cpp")
    paths = [
        # Seen from its own repository's root, also where that is an external one.
        source.short_path.split("/", 2)[2] if source.short_path.startswith("../") else source.short_path
        for source in ctx.files.srcs
    ]
    ctx.actions.write(batch, "".join(['#include "%s"\n' % path for path in paths]))
    return [DefaultInfo(files = depset([batch]))]

_source_batch = rule(
    implementation = _source_batch_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cpp"])},
    doc = "A source that includes others.",
)

def batched(rule, name, srcs, deps = [], **kwargs):
    """A target that compiles its sources in batches.

    Args:
      rule: cc_library, cc_binary or cc_test.
      name: of the target.
      srcs: files of this package; those that end in .cpp are batched.
      deps: as for the rule.
      **kwargs: passed to the rule.
    """
    sources = sorted([file for file in srcs if file.endswith(".cpp")])
    others = [file for file in srcs if not file.endswith(".cpp")]
    testonly = kwargs.get("testonly", False)
    if len(sources) > 1:
        count = (len(sources) + _BATCH - 1) // _BATCH
        for i in range(count):
            batch = "%s_batch_%d" % (name, i)
            _source_batch(
                name = batch,
                testonly = testonly,
                srcs = sources[len(sources) * i // count:len(sources) * (i + 1) // count],
                visibility = ["//visibility:private"],
            )
            others.append(":" + batch)
        cc_library(
            name = name + "_sources",
            testonly = testonly,
            textual_hdrs = sources,
            visibility = ["//visibility:private"],
        )
        sources = []
        deps = deps + [":%s_sources" % name]
    rule(
        name = name,
        srcs = others + sources,
        deps = deps,
        **kwargs
    )
