#include "stillmap/allocators/report/timeline_picture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/svg_writer.h"

namespace stillmap {
namespace {

constexpr double outer_margin = 32, left_margin = 104, width = 1000,
                 plot_width = width - left_margin - outer_margin;
constexpr double plot_height = 340, legend_pitch = 22;
constexpr std::size_t colours = 6;
constexpr int decimals = 1;  // of coordinates in outlines

constexpr const char *timeline_style = R"(<style>
  .live { fill: #9adbc4; fill-opacity: 0.7; }
  .grid { stroke: #818b98; stroke-opacity: 0.3; }
  .limit { stroke: #c21f2b; stroke-width: 1.5; stroke-dasharray: 6 4; }
  .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .end { fill: none; stroke: #c21f2b; stroke-width: 2.5; }
  .c0 { stroke: #2374b5; } .c1 { stroke: #e07b00; } .c2 { stroke: #8250df; } .c3 { stroke: #1a7f37; }
  .c4 { stroke: #bf3989; } .c5 { stroke: #59636e; }
  @media (prefers-color-scheme: dark) {
    .live { fill: #2d6a5a; }
    .c0 { stroke: #58a6ff; } .c1 { stroke: #f6a33b; } .c2 { stroke: #bc8cff; } .c3 { stroke: #3fb950; }
    .c4 { stroke: #f778ba; } .c5 { stroke: #9198a1; }
    .limit, .end { stroke: #ff7b72; }
  }
</style>
)";

std::uint64_t most(const timeline_curve &c, std::uint64_t timeline_point::*bytes) {
  std::uint64_t peak = 0;
  for (const timeline_point &p : c.points) peak = std::max(peak, p.*bytes);
  return peak;
}

// A power of two of bytes, so that its multiples are short to write: about four up to `top`.
std::uint64_t grid_step(std::uint64_t top) {
  std::uint64_t step = 1;
  while (top / step > 6) step *= 2;
  return step;
}

class timeline_canvas : svg_writer {
 public:
  explicit timeline_canvas(const timeline_picture &p) : p_(p) {}

  std::string draw() {
    const timeline_curve *longest = nullptr;
    for (const timeline_curve &c : p_.curves) {
      if (c.points.empty()) continue;
      top_ = std::max({top_, most(c, &timeline_point::live), most(c, &timeline_point::committed)});
      if (longest == nullptr || c.points.back().requests > requests_) longest = &c;
      requests_ = std::max(requests_, c.points.back().requests);
    }
    // A limit far above everything would leave the curves flat.
    const bool limited = p_.capacity != 0 && p_.capacity / 2 <= top_;
    if (limited) top_ = std::max<std::uint64_t>(top_, p_.capacity);
    write(outer_margin, 42, p_.title, "title");
    write(outer_margin, 66, p_.subtitle, "soft");
    plot_ = 66 + 26;
    grid();
    if (longest != nullptr) live_area(*longest);
    for (std::size_t i = 0; i < p_.curves.size(); ++i) curve(p_.curves[i], i);
    if (limited) {
      line(left_margin, y_of(p_.capacity), left_margin + plot_width, y_of(p_.capacity), "limit");
      write(left_margin + plot_width, y_of(p_.capacity) - 6,
            "capacity " + format_bytes(p_.capacity), "bad", "end");
    }
    const double bottom = legend(longest);
    return document(p_.title, width, bottom, timeline_style);
  }

 private:
  double x_of(std::uint64_t requests) const {
    return left_margin + plot_width * static_cast<double>(requests) /
                             static_cast<double>(std::max<std::uint64_t>(requests_, 1));
  }
  double y_of(std::uint64_t bytes) const {
    return plot_ + plot_height * (1 - static_cast<double>(bytes) /
                                          static_cast<double>(std::max<std::uint64_t>(top_, 1)));
  }

  void grid() {
    const std::uint64_t step = grid_step(std::max<std::uint64_t>(top_, 1));
    for (std::uint64_t bytes = 0; bytes <= top_; bytes += step) {
      line(left_margin, y_of(bytes), left_margin + plot_width, y_of(bytes), "grid");
      write(left_margin - 10, y_of(bytes) + 4, format_bytes(bytes), "soft", "end");
    }
    write(left_margin, plot_ + plot_height + 20, "0", "soft");
    write(left_margin + plot_width, plot_ + plot_height + 20,
          format_count(requests_) + " " + p_.unit, "soft", "end");
  }

  // Of steps: in an interval a curve is at its maximum there.
  svg_path steps(const timeline_curve &c, std::uint64_t timeline_point::*bytes) const {
    svg_path outline(decimals);
    std::uint64_t from = 0;
    for (const timeline_point &p : c.points) {
      outline.add(outline.commands().empty() ? "M" : "L", {x_of(from), y_of(p.*bytes)});
      outline.add(" H", {x_of(p.requests)});
      from = p.requests;
    }
    return outline;
  }

  void live_area(const timeline_curve &c) {
    begin_group(p_.live_title + ", at most " + format_bytes(most(c, &timeline_point::live)));
    path(steps(c, &timeline_point::live).add("V", {y_of(0)}).add(" H", {left_margin}).add(" Z"),
         "live");
    end_group();
  }

  void curve(const timeline_curve &c, std::size_t i) {
    if (c.points.empty()) return;
    begin_group(c.title + ": at most " + format_bytes(most(c, &timeline_point::committed)));
    path(steps(c, &timeline_point::committed), "curve c" + std::to_string(i % colours));
    if (c.oom) {
      const double x = x_of(c.points.back().requests), y = y_of(c.points.back().committed);
      path(svg_path(decimals).add("M", {x - 6, y - 6}).add(" l12 12 m0 -12 l-12 12"), "end");
    }
    end_group();
  }

  // Returns the height of the document.
  double legend(const timeline_curve *longest) {
    double y = plot_ + plot_height + 52;
    if (longest != nullptr) {
      box(left_margin, y - 11, 22, 13, "live");
      write(left_margin + 34, y,
            p_.live_title + ", at most " + format_bytes(most(*longest, &timeline_point::live)));
      y += legend_pitch;
    }
    for (std::size_t i = 0; i < p_.curves.size(); ++i) {
      const timeline_curve &c = p_.curves[i];
      const std::string css = "curve c" + std::to_string(i % colours);
      line(left_margin, y - 4, left_margin + 22, y - 4, css);
      const std::string text =
          c.title + " held at most " + format_bytes(most(c, &timeline_point::committed));
      write(left_margin + 34, y, text);
      // The width of text is estimated.
      const double end = left_margin + 34 + 6.9 * static_cast<double>(text.size()) + 16;
      if (c.oom) write(end, y, "ran out of memory", "bad");
      y += legend_pitch;
    }
    return y + 6;
  }

  const timeline_picture &p_;
  double plot_ = 0;  // the upper edge
  std::uint64_t top_ = 0, requests_ = 0;
};

}  // namespace

result<std::string> to_svg(const timeline_picture &p) {
  return with_host_memory("to_svg",
                          [&]() -> result<std::string> { return timeline_canvas(p).draw(); });
}

}  // namespace stillmap
