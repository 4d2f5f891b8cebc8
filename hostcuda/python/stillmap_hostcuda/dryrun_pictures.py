"""Draws what dry runs found as one SVG document: for each allocator, memory over time, the heap at its peak, and the
lines of the program that allocated what was in use then. All allocators have the same scale.
"""
import collections
import math
from xml.sax.saxutils import escape

GIB, MIB = 1 << 30, 1 << 20
WIDTH, MARGIN = 1120, 30
LEFT, RIGHT = MARGIN + 62, WIDTH - MARGIN  # of the curves
ROWS, ROW = 18, 17  # of the largest heap, and their height
CURVE = 190
LINES = 10  # places that are listed
SMALLEST = 0.7  # pixels; what is smaller is drawn together
TITLES = {
    "native": "PyTorch's native allocator",
    "expandable": "PyTorch's allocator with expandable segments",
    "async": "cudaMallocAsync",
    "stillmap": "Stillmap",
}
COLOURS = ("#124b8c", "#2f9fc4", "#1a7f5a", "#8fd0c0", "#c2557a", "#7bb241", "#7a5a48", "#9db4d8")
OTHER, FREE, PENDING = "#8a949e", "#f6a33b", "#a86fb8"
STYLE = """
  text { font: 13px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328; }
  .title { font-size: 21px; font-weight: 600; } .head { font-size: 16px; font-weight: 600; }
  .soft { fill: #59636e; } .code { font-family: 'DejaVu Sans Mono', ui-monospace, monospace; font-size: 12px; }
  .end { text-anchor: end; } .middle { text-anchor: middle; }
  .page { fill: #ffffff; } .grid { stroke: #d0d7de; } .mark { stroke: #59636e; stroke-dasharray: 4 3; }
  .live { fill: #2374b5; } .span { fill: #86b3dc; } .held { fill: #f6a33b; }
"""


def shown(count):
    return "%.2f GiB" % (count / GIB) if count >= GIB else "%.1f MiB" % (count / MIB)


def rounded(count):
    return "%g %s" % ((count / GIB, "GiB") if count >= GIB else (count / MIB, "MiB")) if count else "0"


def counted(number, noun):
    return "%s %s%s" % (format(number, ","), noun, "" if number == 1 else "s")


def tick(most):
    """The distance of some four round numbers below `most`."""
    unit = 2.0**math.floor(math.log2(max(most, 1) / 4))
    return unit if most / unit <= 6 else 2 * unit


class Drawing:
    def __init__(self):
        self.parts, self.y = [], MARGIN

    def text(self, x, y, text, kind="", hint=""):
        self.parts.append('<text x="%.1f" y="%.1f" class="%s">%s%s</text>' % (
            x, y, kind, "<title>%s</title>" % escape(hint) if hint else "", escape(text)))

    def box(self, x, y, width, height, fill, hint="", kind=""):
        look = 'class="%s"' % kind if kind else 'fill="%s"' % fill
        self.parts.append('<rect x="%.4g" y="%.4g" width="%.4g" height="%.4g" %s%s' % (
            x, y, width, height, look, "><title>%s</title></rect>" % escape(hint) if hint else "/>"))

    def line(self, x1, y1, x2, y2, kind):
        self.parts.append('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>' % (x1, y1, x2, y2, kind))

    def area(self, xs, lows, highs, kind):
        """Between two step curves; each value holds until the x of the next."""
        up, down = [], []
        for i, x in enumerate(xs):
            after = xs[i + 1] if i + 1 < len(xs) else x
            up += ["%.1f,%.1f" % (x, highs[i]), "%.1f,%.1f" % (after, highs[i])]
            down += ["%.1f,%.1f" % (x, lows[i]), "%.1f,%.1f" % (after, lows[i])]
        self.parts.append('<polygon class="%s" points="%s"/>' % (kind, " ".join(up + down[::-1])))

    def document(self):
        return ('<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1:.0f}" viewBox="0 0 {0} {1:.0f}">'
                "<style>{2}</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n{3}\n</svg>\n").format(
                    WIDTH, self.y + MARGIN, STYLE, "\n".join(self.parts))


def key(drawing, entries):
    """A legend in one line."""
    x = LEFT
    for fill, label in entries:
        drawing.box(x, drawing.y - 10, 12, 12, fill)
        drawing.text(x + 17, drawing.y, label, "soft")
        x += 17 + 7.2 * len(label) + 22
    drawing.y += 12


def draw_curve(drawing, history, most):
    points = history["curve"]
    top, bottom = drawing.y, drawing.y + CURVE
    end = max(points[-1][0], 1e-9)

    def at(bytes_):
        return bottom - CURVE * bytes_ / most

    step = tick(most)
    for number in range(int(most / step) + 1):
        y = at(number * step)
        drawing.line(LEFT, y, RIGHT, y, "grid")
        drawing.text(LEFT - 8, y + 4, rounded(number * step), "soft end")
    xs = [LEFT + (RIGHT - LEFT) * point[0] / end for point in points]
    floor = [bottom] * len(xs)
    drawing.area(xs, floor, [at(point[3]) for point in points], "held")
    drawing.area(xs, [at(point[1]) for point in points], [at(point[2]) for point in points], "span")
    drawing.area(xs, floor, [at(point[1]) for point in points], "live")
    moments = history.get("moments", ())
    for number, one in enumerate(moments):
        x = LEFT + (RIGHT - LEFT) * one["event"] / end
        drawing.line(x, top - 8, x, bottom, "mark")
        drawing.text(x, top - 12, "AB"[number] if len(moments) > 1 else "the peak", "soft middle")
    drawing.text(LEFT, bottom + 17, "0", "soft")
    drawing.text(RIGHT, bottom + 17, "%s events, in their order: allocations, frees and the allocator's own" %
                 format(history["events"], ",") if moments else
                 "%.1f s of the dry run; a GPU takes another time" % end, "soft end")
    drawing.y = bottom + 40


def pieces(peak):
    """All memory of a heap in order: (segment, offset in the heap, bytes, place, or None for free memory)."""
    begin = 0
    for number, (_, size, blocks) in enumerate(peak["segments"]):
        at = 0
        for offset, length, where in blocks:
            if offset > at:
                yield number, begin + at, offset - at, None
            yield number, begin + offset, length, where
            at = offset + length
        if size > at:
            yield number, begin + at, size - at, None
        begin += size


def draw_heap(drawing, peak, most, colour):
    scale = ROWS * (WIDTH - 2 * MARGIN) / most  # pixels per byte
    width = WIDTH - 2 * MARGIN
    top, ends = drawing.y, set()

    def draw(begin, end, where):
        fill, label = colour(peak, where)
        while begin < end - 1e-9:
            row = int((begin + 1e-9) / width)
            until = min(end, (row + 1) * width)
            drawing.box(MARGIN + begin - row * width, top + row * (ROW + 4), max(until - begin, 0.3), ROW, fill,
                        label)
            begin = until

    small, size, began = collections.Counter(), 0, 0.0
    last = None
    for number, offset, length, where in pieces(peak):
        if last is not None and number != last:
            ends.add(offset * scale)
        last = number
        if not small:
            began = offset * scale
        small[where] += length
        size += length
        if size * scale >= SMALLEST:
            draw(began, (offset + length) * scale, small.most_common(1)[0][0])
            small, size = collections.Counter(), 0
    if small:
        draw(began, began + size * scale, small.most_common(1)[0][0])
    for x in ends:  # where one segment ends and the next begins
        row = int(x / width)
        drawing.box(MARGIN + x - row * width - 0.5, top + row * (ROW + 4) - 1.5, 1, ROW + 3, "", kind="page")
    drawing.y = top + math.ceil(peak["held"] * scale / width) * (ROW + 4) + 18


def draw_places(drawing, peak, colour):
    listed = peak["places"][:LINES]
    rest = peak["places"][LINES:]
    rows = [(i, *one) for i, one in enumerate(listed)]
    if rest:
        rows.append((LINES, "%d other lines" % len(rest), sum(one[1] for one in rest), sum(one[2] for one in rest)))
    for number, name, size, blocks in rows:
        drawing.box(MARGIN, drawing.y - 10, 12, 12, colour(peak, number)[0] if number < LINES else OTHER)
        drawing.text(MARGIN + 92, drawing.y, shown(size), "end")
        drawing.text(MARGIN + 145, drawing.y, "%.1f %%" % (100 * size / max(peak["live"], 1)), "soft end")
        drawing.text(MARGIN + 240, drawing.y, counted(blocks, "block"), "soft end")
        drawing.text(MARGIN + 256, drawing.y, name if len(name) <= 110 else "…" + name[-109:],
                     "code" if number < LINES else "soft")
        drawing.y += 19
    drawing.y += 8


def draw_moment(drawing, one, mark, most, colour):
    when = "when most was in tensors" if one["what"] == "tensors" else "after the request for which it last grew"
    drawing.text(MARGIN, drawing.y, "%sThe heap %s: %s in tensors, coloured by the line that allocated them, and %s free, "
                 "in orange; %s" % (mark and mark + ": ", when, shown(one["live"]), shown(one["held"] - one["live"]),
                                    counted(len(one["segments"]), "segment")))
    drawing.y += 14
    draw_heap(drawing, one, most, colour)
    drawing.text(MARGIN, drawing.y, "Where this memory was allocated: the innermost line outside PyTorch")
    drawing.y += 22
    draw_places(drawing, one, colour)
    drawing.y += 14


def colours_of(histories):
    """The places with the most memory have the same colour in all heaps."""
    most = collections.Counter()
    for history in histories:
        for one in history.get("moments", ()):
            for name, size, _ in one["places"]:
                most[name] = max(most[name], size)
    fills = dict(zip((name for name, _ in most.most_common(len(COLOURS))), COLOURS))

    def colour(peak, where):
        if where is None:
            return FREE, "free"
        if where == -1:
            return PENDING, "freed, but other streams may still use it"
        name, size, blocks = peak["places"][where]
        return fills.get(name, OTHER), "%s: %s in %s" % (name, shown(size), counted(blocks, "block"))
    return colour


def draw(program, subtitle, runs):
    """`runs` are (allocator, report); a report has `live`, `held` and `history`."""
    drawing = Drawing()
    drawing.text(MARGIN, drawing.y + 14, "Device memory in a dry run", "title")
    drawing.text(MARGIN, drawing.y + 40, program if len(program) <= 140 else program[:139] + "…", "code", program)
    drawing.text(MARGIN, drawing.y + 62, subtitle, "soft")
    drawing.y += 104
    runs = [(name, report) for name, report in runs if report.get("history") and report["history"]["curve"]]
    most = max([1] + [max(report["held"], report["live"]) for _, report in runs])
    colour = colours_of([report["history"] for _, report in runs])
    for name, report in runs:
        history = report["history"]
        drawing.text(MARGIN, drawing.y, "%s: at most %s held, and at most %s in tensors" % (
            TITLES.get(name, name), shown(report["held"]), shown(report["live"])), "head")
        drawing.y += 30
        key(drawing, [("#2374b5", "in tensors"), (FREE, "held by the allocator, and not in use")] +
            [("#86b3dc", "in tensors for a time too short to draw")])
        drawing.y += 22
        draw_curve(drawing, history, 1.06 * most)
        if "moments" not in history:
            drawing.text(MARGIN, drawing.y, "This allocator keeps no history: memory was sampled every %.0f ms, so the "
                         "curve may miss short peaks, and the heap is not known." % (1000 * history["sampled"]), "soft")
            drawing.y += 48
            continue
        if history.get("devices", 1) > 1:
            drawing.text(MARGIN, drawing.y, "This is device %d, which has the most of the %d that the program used." %
                         (history["device"], history["devices"]), "soft")
            drawing.y += 24
        if history["lost"]:
            drawing.text(MARGIN, drawing.y, "The oldest events are missing: PyTorch keeps the last %s." %
                         format(history["events"], ","), "soft")
            drawing.y += 24
        for number, one in enumerate(history["moments"]):
            draw_moment(drawing, one, "AB"[number] if len(history["moments"]) > 1 else "", most, colour)
        drawing.y += 30
    if not runs:
        drawing.text(MARGIN, drawing.y, "No run left a history.", "soft")
    return drawing.document()
