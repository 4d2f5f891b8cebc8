#!/usr/bin/env python3
"""Dry runs of models from their packages (models/*.py) under all allocators, as a table.

    hostcuda/clients/dry_runs.py --libraries FOLDER --stillmap LIBRARY [--find-least] [MODEL...]

FOLDER is what hostcuda/python/wheel.sh --stage-only writes: out/wheel/source/stillmap_hostcuda. The packages are
installed from PyPI at pinned versions below --work.
"""
import argparse
import ast
import datetime
import json
import os
import pathlib
import subprocess
import sys

import run

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = [
    ["--no-deps", "torch==2.8.0", "torchvision==0.23.0", "transformers==4.57.1", "diffusers==0.35.2"],
    ["numpy", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "filelock", "setuptools",
     "tokenizers==0.22.1", "safetensors", "huggingface-hub==0.35.3", "regex", "pyyaml", "requests", "tqdm", "packaging",
     "pillow", "importlib-metadata"],
]
# What a reader should know of a run, by model and allocator. A run that fails without a note fails the script.
NOTES = {
    ("llama_graphs", "async"):
        "*live* and *held* leave out the memory of graphs, which CUDA keeps apart from PyTorch's pool. On hostcuda "
        "each allocation in a graph has memory of its own as long as the graph exists; CUDA reuses it within the graph. "
        "So *least* says nothing of a GPU.",
}
COLUMNS = ("live", "held", "least")


def dry_run(model, python, options):
    # The package is imported under its own name, wherever it was staged.
    command = [sys.executable, "-c", "import sys; from stillmap_hostcuda import launcher; sys.exit(launcher.main())",
               "dryrun", "--json", "--allocator", "all", "--stillmap", options.stillmap]
    if options.find_least:
        command.append("--find-least")
    environment = dict(os.environ, PYTHONPATH=str(options.libraries.absolute().parent), PYTHONWARNINGS="ignore",
                       PYTHONNOUSERSITE="1")
    done = subprocess.run([*command, "--", python, model], env=environment, stdout=subprocess.PIPE, check=False)
    return json.loads(done.stdout)["runs"]


def gib(bytes_):
    return "%.2f" % (bytes_ / 2**30) if bytes_ else ""


def write(path, rows):
    notes = []
    lines = ["# Dry runs", "",
             "Written by `hostcuda/clients/dry_runs.py` on %s, on a machine without a GPU: PyTorch 2.8.0, transformers "
             "4.57.1, torchvision 0.23.0 and diffusers 0.35.2, unchanged. Memory in GiB: *live* is the peak of what "
             "tensors take, rounded as the allocator rounds it, *held* what the allocator has taken from the device at "
             "its peak, *least* the smallest device on which the program ends. Nothing here was measured on a GPU."
             % datetime.date.today(), "",
             "| model | allocator | live | held | held/live | least | seconds |", "|---|---|---:|---:|---:|---:|---:|"]
    for stem, model, runs in rows:
        for one in runs:
            note = NOTES.get((stem, one["allocator"]))
            if note:
                notes.append(note)
            mark = " (%d)" % len(notes) if note else ""
            cells = [gib(one.get(name)) for name in COLUMNS]
            ratio = "%.3f" % (one["held"] / one["live"]) if one.get("live") else ""
            lines.append("| %s | %s | %s | %s | %s | %s | %.0f |" %
                         (model, one["allocator"] + mark, cells[0], cells[1], ratio, cells[2], one.get("seconds", 0)))
    lines += ["%s%d. %s" % ("\n" if number == 1 else "", number, note) for number, note in enumerate(notes, 1)]
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description="Dry runs of models under all allocators.")
    parser.add_argument("--libraries", type=pathlib.Path, required=True)
    parser.add_argument("--stillmap", required=True, metavar="LIBRARY", help="libstillmap_torch.so")
    parser.add_argument("--find-least", action="store_true")
    parser.add_argument("--work", type=pathlib.Path, default=run.ROOT / "out/clients")
    parser.add_argument("--table", type=pathlib.Path, default=HERE / "dry_runs.md")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    options = parser.parse_args()
    options.stillmap = str(pathlib.Path(options.stillmap).resolve())
    python = run.prepare(run.Client(PACKAGES, [], []), options.work.resolve() / "models")
    rows, failed = [], False
    for path in sorted((HERE / "models").glob("*.py")):
        if options.models and path.stem not in options.models:
            continue
        runs = dry_run(path, python, options)
        name = ast.get_docstring(ast.parse(path.read_text())).rstrip(".")
        rows.append((path.stem, name, runs))
        failed = failed or any(one["status"] != 0 and (path.stem, one["allocator"]) not in NOTES for one in runs)
        for one in runs:
            print("%s, %s: held %s GiB for %s" % (path.stem, one["allocator"], gib(one.get("held")), gib(one.get("live"))),
                  flush=True)
    write(options.table, rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
