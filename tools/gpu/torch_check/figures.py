"""Statistics of measured values, and their formatting."""


def percentile(values, part):
    """The value that `part` (0 to 1) of all are not above, between two by proportion; None of
    none."""
    if not values:
        return None
    ordered = sorted(values)
    at = part * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def median(values):
    return percentile(values, 0.5)


def ratio(part, whole):
    """None where one of them is not known."""
    return part / whole if part is not None and whole else None


def per_step(before, after, steps):
    """How much each counter rose in a step; None where there are no counters."""
    if not before or not after or not steps:
        return None
    return {name: (after[name] - before[name]) / steps for name in after if name in before}


def gigabytes_per_second(bytes_, seconds):
    return bytes_ / seconds / 1e9 if seconds else None


def human_bytes(bytes_):
    if bytes_ is None:
        return "-"
    size = float(bytes_)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.2f} {unit}"


def human_seconds(seconds):
    return (
        "-"
        if seconds is None
        else f"{seconds:.2f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.2f} ms"
    )


def cell(name, value):
    """One figure as a table shows it; the name's end says what it counts."""
    if value is None:
        return "-"
    if name.endswith("bytes"):
        return human_bytes(value)
    if name.endswith("seconds"):
        return human_seconds(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def table(rows, columns):
    """Lines of plain text, the columns as wide as what is in them."""
    cells = [list(columns)] + [[cell(c, row.get(c)) for c in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in cells
    ]
