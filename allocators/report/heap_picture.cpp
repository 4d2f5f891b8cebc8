// Draws the picture as SVG.
#include "stillmap/allocators/report/heap_picture.h"

#include <algorithm>

#include "stillmap/allocators/report/internal/heap_layout.h"
#include "stillmap/allocators/report/internal/text_out.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/svg_writer.h"

namespace stillmap {
namespace {

constexpr double margin = 32, column_gap = 44, row_height = 15, row_pitch = 18;
constexpr double one_column = 936, of_several = 560;
constexpr unsigned most_rows = 44;
constexpr const char *dot = " \xC2\xB7 ";

constexpr const char *style = R"(<style>
  .arena { font-weight: 600; }
  .p0 { fill: #9adbc4; } .p1 { fill: #5cc1b4; } .p2 { fill: #2f9fc4; } .p3 { fill: #2374b5; } .p4 { fill: #124b8c; }
  .p5 { fill: #a86fb8; }
  .p6 { fill: #f6a33b; }
  .p7 { fill: #818b98; }
  .room { fill: #eaeef2; }
  .outline { fill: none; stroke: #818b98; }
  .wanted { fill: #c21f2b; fill-opacity: 0.12; stroke: #c21f2b; stroke-width: 1.5; stroke-dasharray: 5 3; }
  @media (prefers-color-scheme: dark) {
    .room { fill: #262c36; }
    .p4 { fill: #1d5fae; }
  }
</style>
)";

std::string name_of(const heap_map::arena &a) {
  return a.name.empty() ? text::name_of(a.stream) : a.name;
}

std::string times(std::size_t bytes, std::size_t of) {
  return format_fixed(of == 0 ? 0.0 : static_cast<double>(bytes) / static_cast<double>(of), 3);
}

std::string css_of(paint p) {
  std::string css = "p";
  css += std::to_string(static_cast<unsigned>(p));
  return css;
}

class canvas : svg_writer {
 public:
  explicit canvas(const heap_picture &p) : p_(p) {}
  std::string draw();

 private:
  double lines(double x, double y, const std::vector<std::string> &parts, const char *css);
  void legend();
  double head(const heap_column &c, double x, double y);
  double use_bar(const heap_column &c, const heap_figures &f, double x, double y);
  double wanted(const heap_column &c, const heap_figures &f, double x, double y);
  double arena(const heap_map::arena &a, double x, double y);
  void piece(const drawn_piece &d, double x, double y);

  const heap_picture &p_;
  double width_ = 0, column_ = 0, y_ = 0;
  std::uint64_t row_bytes_ = 0, bar_bytes_ = 0;
};

// Writes the parts separated by dots, on as many lines as the column needs. Text width is
// estimated. Returns the baseline after the last line.
double canvas::lines(double x, double y, const std::vector<std::string> &parts, const char *css) {
  const auto most = static_cast<std::size_t>(column_ / 6.9);
  std::string line;
  for (const std::string &part : parts) {
    if (!line.empty() && line.size() + part.size() + 3 > most) {
      write(x, y, line, css);
      y += 18;
      line.clear();
    }
    line += line.empty() ? part : dot + part;
  }
  if (!line.empty()) write(x, y, line, css);
  return y + 18;
}

void canvas::legend() {
  std::array<bool, paints> used{};
  for (const heap_column &c : p_.columns) {
    for (const heap_map::arena &a : c.map.arenas) {
      for (const heap_extent &s : a.extents) used[static_cast<std::size_t>(paint_of(s))] = true;
    }
  }
  double x = margin;
  const auto entry = [&](paint p, const std::string &label) {
    const double wide = 24 + 6.9 * static_cast<double>(label.size()) + 16;
    if (x + wide > width_ - margin) {
      x = margin;
      y_ += 22;
    }
    const double thin = p == paint::gap ? 3 : 16;
    box(x + (16 - thin) / 2, y_ - 11, thin, 13, css_of(p));
    write(x + 23, y_, label);
    x += wide;
  };
  entry(paint::live_0, "blocks up to " + format_bytes(live_bounds[0]));
  for (std::size_t i = 1; i < live_bounds.size(); ++i) {
    entry(static_cast<paint>(i), "to " + format_bytes(live_bounds[i]));
  }
  entry(paint::live_4, "larger");
  entry(paint::free, "free memory");
  if (used[static_cast<std::size_t>(paint::pending_free)]) {
    entry(paint::pending_free, "freed, other streams still use it");
  }
  if (used[static_cast<std::size_t>(paint::gap)]) {
    entry(paint::gap, "addresses without memory, not to scale");
  }
  y_ += 22;
  write(margin, y_,
        "Area is memory: each full row is " + format_bytes(row_bytes_) +
            ". Addresses run row by row.",
        "soft");
  y_ += 34;
}

// The bar of all memory by use, at the same scale in all columns.
double canvas::use_bar(const heap_column &c, const heap_figures &f, double x, double y) {
  const double per_byte = column_ / static_cast<double>(std::max<std::uint64_t>(bar_bytes_, 1));
  box(x, y, static_cast<double>(std::max(c.capacity, f.committed)) * per_byte, 18, "room");
  double at = x;
  const auto part = [&](std::size_t bytes, const char *css, const char *what) {
    if (bytes == 0) return;
    const double wide = static_cast<double>(bytes) * per_byte;
    begin_group(std::string(what) + ": " + format_bytes(bytes));
    box(at, y, wide, 18, css);
    end_group();
    at += wide;
  };
  part(f.live, "p3", "in blocks");
  part(f.pending_free, "p5", "freed, other streams still use it");
  part(f.free + f.cached, "p6", "free");
  return y + 18;
}

// The failed request beside the largest free piece, at the scale of the rows.
double canvas::wanted(const heap_column &c, const heap_figures &f, double x, double y) {
  const auto bar = [&](std::size_t bytes, const char *css, const std::string &label) {
    const double all = column_ * static_cast<double>(bytes) /
                       static_cast<double>(std::max(row_bytes_, std::uint64_t{1}));
    double left = all;
    do {
      const double wide = std::max(std::min(left, column_), 1.0);
      box(x, y, wide, row_height, css);
      y += row_pitch;
      left -= column_;
    } while (left > 0);
    y += 12;
    write(x, y, label, "soft");
    y += 16;
  };
  bar(c.wanted, "wanted", "requested: " + format_bytes(c.wanted));
  bar(f.largest_free, "p6", "the largest free piece: " + format_bytes(f.largest_free));
  const std::size_t free = f.free + f.cached;
  const std::size_t left = c.capacity > f.committed ? c.capacity - f.committed : 0;
  if (free + left >= c.wanted) {
    y += 6;
    write(x, y,
          left == 0 ? "all that is free: " + format_bytes(free) + ". Enough, but in pieces."
                    : "all that is free or not committed yet: " + format_bytes(free + left) +
                          ". Enough, but in pieces.",
          "bad");
    y += 18;
  }
  return y;
}

double canvas::head(const heap_column &c, double x, double y) {
  const heap_figures f = figures_of(c.map);
  write(x, y, c.title, "name");
  y += 22;
  if (!c.note.empty()) {
    y = lines(x, y, {c.note}, c.wanted != 0 ? "bad" : "soft");
  }
  y = use_bar(c, f, x, y - 6) + 20;
  const std::size_t free = f.free + f.cached;
  std::vector<std::string> facts;
  facts.push_back(format_bytes(f.live) + " live in " + format_count(f.blocks) +
                  (f.blocks == 1 ? " block" : " blocks"));
  facts.push_back(format_bytes(f.committed) + " committed, " + times(f.committed, f.live) +
                  " times that");
  if (c.capacity != 0) facts.push_back(format_bytes(c.capacity) + " may be committed");
  y = lines(x, y, facts, "");
  facts.clear();
  if (free != 0) {
    facts.push_back(
        format_bytes(free) + " free in " + format_count(f.free_pieces) +
        (f.free_pieces == 1 ? " piece" : " pieces, the largest " + format_bytes(f.largest_free)));
    if (c.map.page_bytes != 0) {
      facts.push_back(format_bytes(f.free_whole_pages) + " of it whole pages, which can move");
      facts.push_back(format_bytes(f.page_edges) + " edges of pages in use");
    }
  }
  if (f.pending_free != 0)
    facts.push_back(format_bytes(f.pending_free) + " pending in other streams");
  facts.push_back(format_bytes(f.reserved) + " of addresses");
  if (f.aliased != 0) facts.push_back(format_bytes(f.aliased) + " of them aliased");
  y = lines(x, y, facts, "soft") + 8;
  if (c.wanted != 0) y = wanted(c, f, x, y) + 6;
  return y;
}

void canvas::piece(const drawn_piece &d, double x, double y) {
  if (d.parts.empty()) return;
  std::string what;
  if (d.color == paint::gap) {
    what = format_bytes(d.bytes) + " of addresses without memory";
    if (d.aliased != 0)
      what += "; the pages of " + format_bytes(d.aliased) + " are in use elsewhere";
    if (d.unmapping != 0) what += "; " + format_bytes(d.unmapping) + " being unmapped";
    if (d.bytes == 0) what = "other addresses";
  } else if (d.pieces > 1) {
    what = format_count(d.pieces) + " small pieces, " + format_bytes(d.bytes) + ", of it " +
           format_bytes(d.live) + " in blocks";
  } else if (d.color == paint::free) {
    what = format_bytes(d.bytes) + " free";
  } else if (d.color == paint::pending_free) {
    what = format_bytes(d.bytes) + " freed, and other streams still use it";
  } else {
    what = "a block of " + format_bytes(d.bytes) + " (" + format_count(d.requested) +
           " bytes requested)";
  }
  what.append("\n").append(text::hex(d.begin)).append(" \xE2\x80\x93 ");
  what += text::hex(d.begin + d.bytes);
  begin_group(what, css_of(d.color));
  for (std::size_t i = 0; i < d.parts.size(); ++i) {
    const auto &part = d.parts[i];
    // Leaves a narrow gap between neighbours that are wide enough.
    const bool last = i + 1 == d.parts.size();
    const double wide =
        last && part.width > 3 && d.color != paint::gap ? part.width - 0.7 : part.width;
    const double grown = d.color == paint::gap ? 2 : 0;
    box(x + part.x, y + part.row * row_pitch - grown / 2, wide, row_height + grown);
  }
  end_group();
}

double canvas::arena(const heap_map::arena &a, double x, double y) {
  const heap_figures f = figures_of(a, 0);
  if (f.committed == 0) return y;
  write(x, y, name_of(a), "arena");
  const double after = x + 8.2 * static_cast<double>(name_of(a).size()) + 14;
  write(after, y, format_bytes(f.live) + " live" + dot + format_bytes(f.free + f.cached) + " free",
        "soft");
  y += 8;
  const drawn_arena drawn = lay_out(a, column_, row_bytes_);
  for (const drawn_piece &d : drawn.pieces) piece(d, x, y);
  return y + drawn.rows * row_pitch + 22;
}

std::string canvas::draw() {
  const std::size_t columns = std::max<std::size_t>(p_.columns.size(), 1);
  column_ = columns == 1 ? one_column : of_several;
  width_ = 2 * margin + static_cast<double>(columns) * column_ +
           static_cast<double>(columns - 1) * column_gap;
  std::uint64_t memory = 0;
  for (const heap_column &c : p_.columns) {
    const heap_figures f = figures_of(c.map);
    memory = std::max<std::uint64_t>({memory, f.committed, c.wanted});
    bar_bytes_ = std::max<std::uint64_t>({bar_bytes_, f.committed, c.capacity});
  }
  row_bytes_ = row_bytes_for(memory, most_rows);

  y_ = 42;
  write(margin, y_, p_.title, "title");
  y_ += 24;
  if (!p_.subtitle.empty()) {
    write(margin, y_, p_.subtitle, "soft");
    y_ += 30;
  }
  legend();
  // The rows of all columns begin at the same height.
  std::vector<double> heads;
  double x = margin, below = y_;
  for (const heap_column &c : p_.columns) {
    below = std::max(below, head(c, x, y_));
    x += column_ + column_gap;
  }
  below += 12;
  double end = below;
  x = margin;
  for (const heap_column &c : p_.columns) {
    double y = below;
    for (const heap_map::arena &a : c.map.arenas) y = arena(a, x, y);
    if (y == below) {
      write(x, y, "no memory is committed", "soft");
      y += 30;
    }
    end = std::max(end, y);
    x += column_ + column_gap;
  }
  return document(p_.title, width_, end, style);
}

// Replaces the browser's delayed tooltip by one that appears at once.
constexpr const char *page_begin = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>)";
constexpr const char *page_style = R"(</title>
<style>
  body { margin: 0; background: #ffffff; }
  #hint { position: fixed; display: none; pointer-events: none; white-space: pre; padding: 6px 9px;
          border-radius: 5px; background: #1f2328; color: #ffffff; z-index: 1;
          font: 13px system-ui, 'DejaVu Sans', sans-serif; }
  g:hover > rect { stroke: #1f2328; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) {
    body { background: #0d1117; }
    #hint { background: #e6edf3; color: #0d1117; }
    g:hover > rect { stroke: #ffffff; }
  }
</style>
</head>
<body>
<div id="hint" role="tooltip"></div>
)";
constexpr const char *page_end = R"(<script>
const hint = document.getElementById('hint');
for (const title of document.querySelectorAll('svg g > title')) {
  title.parentNode.dataset.hint = title.textContent;
  title.remove();
}
document.addEventListener('mousemove', e => {
  const group = e.target.closest && e.target.closest('g[data-hint]');
  hint.style.display = group ? 'block' : 'none';
  if (!group) return;
  hint.textContent = group.dataset.hint;
  const right = window.innerWidth - hint.offsetWidth - 8;
  hint.style.left = Math.max(0, Math.min(e.clientX + 14, right)) + 'px';
  const below = e.clientY + 18;
  const fits = below + hint.offsetHeight < window.innerHeight;
  hint.style.top = (fits ? below : e.clientY - hint.offsetHeight - 10) + 'px';
});
</script>
</body>
</html>
)";

}  // namespace

result<std::string> to_svg(const heap_picture &p) {
  return with_host_memory("to_svg", [&]() -> result<std::string> { return canvas(p).draw(); });
}

result<std::string> to_html(const heap_picture &p) {
  return with_host_memory("to_html", [&]() -> result<std::string> {
    return page_begin + xml_escaped(p.title) + page_style + canvas(p).draw() + page_end;
  });
}

}  // namespace stillmap
