#!/usr/bin/env python3
"""Makes a page of what bench/cost_table measured: costs.md, and plots where there is matplotlib.

  cost_page.py costs.json --out FOLDER

Needs Python 3.7 and nothing else; without matplotlib the page has its tables and says so.
"""
import argparse
import json
import pathlib
import sys

FORMAT = "stillmap-costs 1"

# What rows are looked at against: the title, what is in the head of a column.
GROUPS = (
    ("nothing", "Calls that know no size", ""),
    ("size", "Against the size of the memory", "bytes"),
    ("touched", "First touch: against the size that is written and read", "bytes"),
    ("adjacent", "Against the neighbouring mappings under one call", "count"),
    ("live", "Against the mappings there are already", "count"),
    ("threads", "Against the threads that call at once, each with one page", "count"),
    ("work", "Against the work that runs on other memory", "ms"),
)
PLOTS = {"size": "costs_size.svg", "adjacent": "costs_mappings.svg", "threads": "costs_threads.svg"}
# What makes, maps and takes a page: drawn apart from what allocates otherwise.
VMM = ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemGetAccess",
       "cuMemRetainAllocationHandle", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree")
MODES = ("global", "thread_local", "relaxed")
CALLERS = ("here", "here in relaxed mode", "another thread")
KINDS = ("non-blocking", "blocking")


class NotATable(ValueError):
    """The file is something else."""


def read(path):
    with open(path, encoding="utf-8") as file:
        table = json.load(file)
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise NotATable("%s is not what cost_table writes (%s)" % (path, FORMAT))
    for name in ("rows", "facts"):
        if not isinstance(table.get(name), list):
            raise NotATable("%s has no list of %s" % (path, name))
    return table


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def microseconds(ns):
    us = ns / 1000.0
    return "%.2f" % us if us < 10 else "%.1f" % us if us < 100 else "{:,.0f}".format(us)


def both(row):
    return "%s / %s" % (microseconds(row["median_ns"]), microseconds(row["p99_ns"]))


def amount(x, unit):
    if unit == "bytes":
        for size, letter in ((1 << 30, "GiB"), (1 << 20, "MiB")):
            if x >= size:
                return "%g %s" % (x / size, letter)
        return "%d B" % x
    if unit == "ms":
        return "%g ms of work" % x if x else "no work"
    return "{:,d}".format(int(x))


def short(code):
    code = str(code)
    return code[len("CUDA_ERROR_"):] if code.startswith("CUDA_ERROR_") else code


def in_order(values):
    return list(dict.fromkeys(values))


def grid(rows, unit):
    """A line for each call, a column for each x: median / p99 in µs."""
    calls = in_order(r["call"] for r in rows)
    xs = sorted({r["x"] for r in rows})
    at = {(r["call"], r["x"]): r for r in rows}
    lines = ["| call | " + " | ".join(amount(x, unit) for x in xs) + " | samples |",
             "|---" * (len(xs) + 2) + "|"]
    for call in calls:
        mine = [at[call, x] for x in xs if (call, x) in at]
        counts = sorted({r["n"] for r in mine})
        told = "%d" % counts[0] if len(counts) == 1 else "%d–%d" % (counts[0], counts[-1])
        lines.append("| %s | %s | %s |" % (cell(call), " | ".join(
            both(at[call, x]) if (call, x) in at else "–" for x in xs), told))
    return lines


def list_of_small(rows):
    lines = ["| call | median | p99 | samples |", "|---|---|---|---|"]
    for r in rows:
        lines.append("| %s | %s | %s | %d |" % (cell(r["call"]), microseconds(r["median_ns"]),
                                                microseconds(r["p99_ns"]), r["n"]))
    return lines


def waits(facts):
    """A line for each call, a column for each kind of stream with work."""
    said = {}
    for kind in KINDS:
        prefix = "waits.%s." % kind
        for f in facts:
            if f["name"].startswith(prefix):
                said.setdefault(f["name"][len(prefix):], {})[kind] = f["value"]
    if not said:
        return []
    lines = ["| call | " + " | ".join("work in a %s stream" % k for k in KINDS) + " |",
             "|---" * (len(KINDS) + 1) + "|"]
    for call, by_kind in said.items():
        verdicts = [short(by_kind.get(k, "–")) for k in KINDS]
        lines.append("| %s | %s |" % (cell(call), " | ".join(
            "**%s**" % cell(v) if v.endswith("waits") else cell(v) for v in verdicts)))
    return lines


def captures(facts):
    """A line for each call, a column for each mode and caller."""
    columns = [(m, c) for m in MODES for c in CALLERS]
    said = {}
    for f in facts:
        parts = f["name"].split(".")
        if parts[0] == "capture" and len(parts) == 4:
            lost = "the capture is lost" in f["text"]
            code = "yes" if f["value"] == "CUDA_SUCCESS" else short(f["value"])
            said.setdefault(parts[3], {})[parts[1], parts[2]] = code + (", LOST" if lost else "")
    if not said:
        return []
    lines = ["| call | " + " | ".join("%s: %s" % c for c in columns) + " |",
             "|---" * (len(columns) + 1) + "|"]
    for call, by_column in said.items():
        lines.append("| %s | %s |" % (
            cell(call), " | ".join(cell(by_column.get(c, "–")) for c in columns)))
    return lines


def is_in_a_grid(fact):
    name = fact["name"]
    return name.startswith("capture.") or any(name.startswith("waits.%s." % k) for k in KINDS)


def refused(rows):
    lines = []
    for r in rows:
        if r.get("error"):
            unit = next((u for a, _, u in GROUPS if a == r["against"]), "count")
            where = " at %s" % amount(r["x"], unit) if r["x"] else ""
            lines.append("- %s%s (against %s): %s" % (r["call"], where, r["against"], r["error"]))
    return in_order(lines)


def heading(table):
    lines = ["# What the driver's calls cost on %s" % table.get("device", "an unknown device"), "",
             "- driver: %s" % table.get("driver", "unknown"),
             "- commit: %s" % table.get("commit", "unknown")]
    if table.get("hostcuda"):
        lines.append("- hostcuda (`%s`) is no GPU: no number here says anything about one"
                     % table["hostcuda"])
    if table.get("quick"):
        lines.append("- quick: the numbers mean nothing")
    return lines


def page(table, plots, no_plots_because="", costs=""):
    """The text of costs.md. `plots`: names of the files that there are; `costs`: costs.txt."""
    rows, facts = table["rows"], table["facts"]
    lines = heading(table)
    if no_plots_because:
        lines += ["", "There are no plots: %s." % no_plots_because]
    words = ["- %s" % f["text"] for f in facts if not is_in_a_grid(f)]
    if words:
        lines += ["", "## Found", ""] + words
    lines += ["", "Times are the median / the 99th percentile, in µs; of fewer than 100 samples, the slowest."]
    for against, title, unit in GROUPS:
        mine = [r for r in rows if r["against"] == against and r["n"]]
        if mine:
            lines += ["", "## " + title, ""]
            if PLOTS.get(against) in plots:
                lines += ["![%s](%s)" % (title, PLOTS[against]), ""]
            lines += list_of_small(mine) if against == "nothing" else grid(mine, unit)
    for title, table_lines in (
            ("What waits for work on other memory", waits(facts)),
            ("What is legal while a stream captures", captures(facts)),
            ("Refused", refused(rows))):
        if table_lines:
            lines += ["", "## " + title, ""] + table_lines
    if costs:
        lines += ["", "## For hostcuda", "", "`HOSTCUDA=costs=costs.txt`:", "", "```",
                  costs.rstrip("\n"), "```"]
    return "\n".join(lines) + "\n"


# ---- plots ---------------------------------------------------------------------------------------

def series(rows, against):
    """call -> (xs, medians in µs), of what was measured at more than one x."""
    out = {}
    for call in in_order(r["call"] for r in rows):
        points = sorted((r["x"], r["median_ns"] / 1000.0) for r in rows
                        if r["call"] == call and r["against"] == against and r["n"])
        if len(points) > 1:
            out[call] = ([p[0] for p in points], [p[1] for p in points])
    return out


def draw(axes, lines, label, scale=1.0, from_zero=False):
    for i, (call, (xs, ys)) in enumerate(lines.items()):
        axes.plot([x / scale for x in xs], ys, marker="osv^Dx"[i % 6], label=call,
                  linestyle=("-", "--")[i // 10 % 2], markersize=3, linewidth=1)
    if from_zero:
        axes.set_xscale("symlog", base=10, linthresh=1000, linscale=0.5)
    else:
        axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(label)
    axes.set_ylabel("median, µs")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))


def plot(table, folder):
    """Draws what there is to draw; the names of the files."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot
    # The same table gives the same file.
    matplotlib.rcParams["svg.hashsalt"] = "stillmap"
    rows, drawn = table["rows"], []

    def save(figure, name):
        figure.suptitle("%s (%s)" % (table.get("device", ""), table.get("driver", "")), fontsize=9)
        figure.tight_layout()
        figure.savefig(str(folder / name), metadata={"Date": None})
        pyplot.close(figure)
        drawn.append(name)

    def panels(name, several):
        several = [p for p in several if p[0]]
        if not several:
            return
        figure, axes = pyplot.subplots(len(several), 1, figsize=(9, 4.2 * len(several)),
                                       squeeze=False)
        for one, (lines, label, options) in zip(axes[:, 0], several):
            draw(one, lines, label, **options)
        save(figure, name)

    size = series(rows, "size")
    mib = {"scale": float(1 << 20)}
    panels(PLOTS["size"], [
        ({c: l for c, l in size.items() if c in VMM}, "MiB", mib),
        ({c: l for c, l in size.items() if c not in VMM}, "MiB", mib)])
    panels(PLOTS["adjacent"], [
        (series(rows, "adjacent"), "neighbouring mappings under one call", {}),
        (series(rows, "live"), "mappings there are", {"from_zero": True})])
    panels(PLOTS["threads"], [(series(rows, "threads"), "threads that call at once", {})])
    return drawn


def plots_of(table, folder):
    """(names of the plots, why there are none)"""
    try:
        drawn = plot(table, folder)
    except ImportError:
        return [], "matplotlib cannot be imported here"
    return drawn, "" if drawn else "too little was measured"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("costs", help="what cost_table wrote: costs.json")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where to write")
    given = parser.parse_args(arguments)
    folder = pathlib.Path(given.out)
    try:
        table = read(given.costs)
        folder.mkdir(parents=True, exist_ok=True)
        drawn, reason = plots_of(table, folder)
        beside = pathlib.Path(given.costs).with_name("costs.txt")
        costs = beside.read_text(encoding="utf-8") if beside.is_file() else ""
        (folder / "costs.md").write_text(page(table, drawn, reason, costs), encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print("cost_page.py: %s" % (error if str(error) else type(error).__name__), file=sys.stderr)
        return 1
    print("cost_page.py: %s" % (folder / "costs.md") + "".join(", " + name for name in drawn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
