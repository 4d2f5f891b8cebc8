"""Plots of benchmark results, where matplotlib is installed; the report works without."""
import re

from checking import claims

# Program, picture, what is on the axis, and of which cases: a line for each name.
GROWTH = {
    "in place, warm": r"^grow_buffer/backed_in_place_warm/GiB:(\d+)/",
    "in place, cold": r"^grow_buffer/backed_in_place_cold/GiB:(\d+)/",
    "copying": r"^grow_buffer/backed_copying/GiB:(\d+)/",
    "copying, cuMemAllocAsync": r"^grow_async/backed_copying_async/GiB:(\d+)/",
}
ONE_PAGE = {"one page more": r"^grow_by_one_page/idle/MiB:(\d+)/",
            "while a kernel writes to it": r"^grow_by_one_page/under_a_kernel/MiB:(\d+)/"}
PICTURES = (
    ("growth_bench", "growth.svg", "GiB", "ms to grow there", "real_time", GROWTH),
    ("growth_bench", "one_page.svg", "MiB in the buffer", "us for 2 MiB more", "median_us", ONE_PAGE),
)


def points(cases, pattern, key):
    """(x, y), ascending; of several cases of one x the fastest."""
    best = {}
    for case in cases:
        found = re.search(pattern, case["name"])
        if found and isinstance(case.get(key), (int, float)):
            x = int(found.group(1))
            best[x] = min(case[key], best.get(x, case[key]))
    return sorted(best.items())


def draw(out, gathered):
    """Names of the pictures by program."""
    try:
        import matplotlib
        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError:
        return {}
    drawn = {}
    for program, name, x, y, key, lines in PICTURES:
        cases = claims.cases(gathered, program)
        series = {label: points(cases, pattern, key) for label, pattern in lines.items()}
        if not any(series.values()):
            continue
        figure, axes = pyplot.subplots(figsize=(7, 4))
        for label, of in series.items():
            if of:
                axes.plot(*zip(*of), marker="o", label=label)
        axes.set(xlabel=x, ylabel=y, xscale="log", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend()
        figure.tight_layout()
        figure.savefig(str(out / name))
        pyplot.close(figure)
        drawn.setdefault(program, []).append(name)
    return drawn
