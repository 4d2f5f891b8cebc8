// Draws the address space as SVG. Each reservation is a bar drawn to scale; if little of it is used,
// the used part is enlarged below. The file has no scripts, fonts or links, and follows the
// browser's light or dark theme.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "stillmap/vmm/base/svg_writer.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/map/picture.h"

namespace stillmap::tool {
namespace {

constexpr double page_width = 1000, margin = 40, bar_width = page_width - 2 * margin;
constexpr double bar_height = 26, zoom_height = 44, gap_to_zoom = 34;

constexpr const char *style = R"svg(<style>
  text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 13px; fill: #1f2328; }
  .title { font-size: 22px; font-weight: 600; }
  .name { font-size: 16px; font-weight: 600; }
  .soft { fill: #59636e; }
  .address { font-family: ui-monospace, 'DejaVu Sans Mono', monospace; font-size: 12px; fill: #59636e; }
  .page { fill: #ffffff; }
  .reserved { fill: #eaeef2; stroke: #afb8c1; stroke-dasharray: 5 4; }
  .mapped { fill: #009e73; }
  .shared { fill: #0072b2; }
  .retiring { fill: #e69f00; }
  .striped { fill: url(#stripes); }
  .outline { fill: none; stroke: #818b98; }
  .axis { stroke: #818b98; fill: none; }
  .lens { fill: #818b98; fill-opacity: 0.13; stroke: #818b98; stroke-opacity: 0.6; stroke-dasharray: 3 3; }
  .grid { stroke: #818b98; stroke-opacity: 0.25; }
  .area { fill: #009e73; fill-opacity: 0.25; stroke: none; }
  .curve { fill: none; stroke: #009e73; stroke-width: 2; }
  .moving { fill: none; stroke: #d55e00; stroke-width: 1.8; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .soft, .address { fill: #9198a1; }
    .page { fill: #0d1117; }
    .reserved { fill: #212830; stroke: #656c76; }
  }
</style>
<defs><pattern id="stripes" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
  <rect width="2.5" height="7" fill="#ffffff" fill-opacity="0.55"/>
</pattern></defs>
)svg";

// The round step that cuts `span` into four to eight parts: a power of two for sizes.
std::uint64_t tick_of_bytes(std::uint64_t span) {
  std::uint64_t tick = 1;
  while (tick <= span / 16) tick *= 2;
  return std::max<std::uint64_t>(tick * 2, 1);
}

class svg : svg_writer {
 public:
  explicit svg(const picture &p) : p_(p) {}
  std::string draw();

 private:
  void heading(const std::string &name, const std::string &facts) {
    write_heading(margin, y_, name, facts);
  }
  void bar(const picture_row &row, std::uint64_t span, double height);
  void row(const picture_row &r);
  void ticks(double left, double width, std::uint64_t span, const char *sign);
  void legend();
  void memory();
  void history();

  const picture &p_;
  double y_ = 0;
};

void svg::bar(const picture_row &row, std::uint64_t span, double height) {
  box(margin, y_, bar_width, height, "reserved");
  const double scale = bar_width / static_cast<double>(span);
  for (const backing_run &r : row.runs) {
    if (r.offset >= span) break;
    const double x = margin + static_cast<double>(r.offset) * scale;
    // Never thinner than can be seen, never past the end of the bar.
    const double w =
        std::min(std::max(static_cast<double>(r.bytes) * scale, 1.5), margin + bar_width - x);
    const std::string what =
        fmt::format("{} {} at offset {}, address {}{}", format_bytes(r.bytes), word_for(r.kind),
                    format_bytes(r.offset), hexadecimal(row.begin + r.offset),
                    r.read_only ? ", read-only until written" : "");
    begin_group(what);
    box(x, y_, w, height, word_for(r.kind));
    if (r.read_only) box(x, y_, w, height, "striped");
    end_group();
  }
  box(margin, y_, bar_width, height, "outline");
}

// Marks at round numbers of bytes below a bar or graph.
void svg::ticks(double left, double width, std::uint64_t span, const char *sign) {
  const std::uint64_t tick = tick_of_bytes(span);
  for (std::uint64_t at = 0; at <= span; at += tick) {
    const double x = left + width * static_cast<double>(at) / static_cast<double>(span);
    line(x, y_, x, y_ + 5, "axis");
    // A label near the end would run over the edge.
    write(x, y_ + 18, at == 0 ? "0" : sign + format_bytes(at), "soft",
          at == 0                 ? "start"
          : x > left + width - 30 ? "end"
                                  : "middle");
    if (tick > span - at) break;
  }
}

void svg::row(const picture_row &r) {
  std::string facts =
      r.reservation ? fmt::format("{} of addresses reserved", format_bytes(r.bytes))
                    : fmt::format("{} allocated; it cannot grow in place", format_bytes(r.bytes));
  for (const backing kind : {backing::mapped, backing::shared, backing::retiring}) {
    if (const std::uint64_t n = r.bytes_of(kind); n != 0 && r.reservation) {
      facts += fmt::format(" \xC2\xB7 {} {}", format_bytes(n), word_for(kind));
    }
  }
  if (r.reservation) facts += fmt::format(" \xC2\xB7 backing generation {}", r.generation);
  heading(r.name.empty() ? "(no name)" : r.name, facts);
  y_ += 12;

  const std::uint64_t zoom = zoom_of(r, p_.page_bytes);
  bar(r, r.bytes, bar_height);
  y_ += bar_height;
  const double right = margin + bar_width;
  if (zoom != 0) {
    const double part = bar_width * static_cast<double>(zoom) / static_cast<double>(r.bytes);
    write(right, y_ + 15,
          fmt::format("{} \xE2\x80\x93 {}", hexadecimal(r.begin), hexadecimal(r.begin + r.bytes)),
          "address", "end");
    const double below = y_ + gap_to_zoom;
    svg_path lens(1);
    lens.add("M", {margin, y_}).add("L", {margin + std::max(part, 1.5), y_});
    lens.add("L", {right, below}).add("L", {margin, below}).add("Z");
    path(lens, "lens");
    write(margin + 10, below - 7, fmt::format("the first {}, enlarged", format_bytes(zoom)),
          "soft");
    y_ = below;
    bar(r, zoom, zoom_height);
    y_ += zoom_height;
  }
  const std::uint64_t span = zoom != 0 ? zoom : r.bytes;
  ticks(margin, bar_width, span, "+");
  y_ += 34;
  write(margin, y_, hexadecimal(r.begin), "address");
  write(right, y_, hexadecimal(r.begin + span), "address", "end");
  y_ += 38;
}

void svg::legend() {
  double x = margin;
  const auto entry = [&](const char *css, const std::string &label, bool striped) {
    // Text is not measured: wide letters are assumed.
    const double width = 25 + 7.6 * static_cast<double>(label.size()) + 20;
    if (x + width > page_width) {
      x = margin;
      y_ += 24;
    }
    box(x, y_ - 11, 18, 13, css);
    if (striped) box(x, y_ - 11, 18, 13, "striped");
    write(x + 25, y_, label);
    x += width;
  };
  bool found[backing_kinds] = {}, read_only = false;
  for (const picture_row &r : p_.rows) {
    for (const backing_run &run : r.runs) {
      found[static_cast<std::size_t>(run.kind)] = true;
      read_only = read_only || run.read_only;
    }
  }
  entry("reserved", "reserved: costs no memory", false);
  entry("mapped", "mapped: memory", false);
  if (found[static_cast<std::size_t>(backing::shared)]) {
    entry("shared", "shared by two addresses", false);
  }
  if (read_only) entry("shared", "read-only until written", true);
  if (found[static_cast<std::size_t>(backing::retiring)]) {
    entry("retiring", "retiring: work is pending", false);
  }
  y_ += 42;
}

// Physical memory: pages in use, and free pages of the pool.
void svg::memory() {
  heading("device memory",
          fmt::format("{} of {} held, in pages of {}", format_bytes(p_.physical),
                      format_bytes(p_.device_memory), format_bytes(p_.page_bytes)));
  y_ += 12;
  const std::uint64_t pending = p_.pages_retiring + p_.pool_waiting;
  const std::array<std::uint64_t, 3> parts = {p_.pages_in_use, pending, p_.pool_ready};
  const std::array<const char *, 3> css = {"mapped", "retiring", "reserved"};
  const std::uint64_t all = std::max<std::uint64_t>(parts[0] + parts[1] + parts[2], 1);
  double x = margin;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double w = bar_width * static_cast<double>(parts[i]) / static_cast<double>(all);
    if (parts[i] != 0) box(x, y_, w, bar_height, css[i]);
    x += w;
  }
  box(margin, y_, bar_width, bar_height, "outline");
  y_ += bar_height + 18;
  write(margin, y_,
        fmt::format(
            "{} in use \xC2\xB7 {} free once pending work is done \xC2\xB7 {} free in the pool",
            format_bytes(parts[0]), format_bytes(parts[1]), format_bytes(parts[2])),
        "soft");
  y_ += 44;
}

// Memory held over bytes appended: in place a staircase along the content; by copying the doubled
// buffer, and at each move the old one beside the new one.
void svg::history() {
  if (p_.history.size() < 2) return;
  std::uint64_t most = 1;
  const std::uint64_t length = std::max<std::uint64_t>(p_.history.back().size, 1);
  for (const picture_step &s : p_.history) most = std::max(most, s.mapped);
  std::uint64_t before = 0;
  for (const picture_step &s : p_.copying) {
    most = std::max(most, s.mapped + (s.mapped == before ? 0 : before));
    before = s.mapped;
  }
  const std::string facts = p_.copying.empty()
                                ? "memory held while the content grew"
                                : "memory held while the content grew, in place and by copying";
  heading(p_.history_name, facts);
  y_ += 18;

  constexpr double height = 170, left = margin + 75;
  const double width = margin + bar_width - left;
  const double floor = y_ + height;
  const std::uint64_t tick = tick_of_bytes(most);
  const std::uint64_t top = (most + tick - 1) / tick * tick;
  const auto up = [&](std::uint64_t bytes) {
    return floor - height * static_cast<double>(bytes) / static_cast<double>(top);
  };
  const auto along = [&](std::uint64_t bytes) {
    return left + width * static_cast<double>(bytes) / static_cast<double>(length);
  };
  for (std::uint64_t at = 0; at <= top; at += tick) {
    line(left, up(at), left + width, up(at), at == 0 ? "axis" : "grid");
    if (at % (tick * 2) == 0 || top / tick <= 4) {
      write(left - 8, up(at) + 4, at == 0 ? "0" : format_bytes(at), "soft", "end");
    }
  }

  if (!p_.copying.empty()) {
    svg_path moving(2);
    moving.add("M", {left, floor});
    std::uint64_t size = 0;
    before = 0;
    for (const picture_step &s : p_.copying) {
      // Growing beyond the capacity: both buffers at once, then the new one alone.
      moving.add("H", {along(std::min(s.mapped == before ? s.size : size, length))});
      if (s.mapped != before) moving.add("V", {up(before + s.mapped)});
      moving.add("V", {up(s.mapped)});
      size = std::min(s.mapped, length);
      before = s.mapped;
    }
    path(moving.add("H", {left + width}), "moving");
  }
  svg_path staircase(2);
  staircase.add("M", {left, floor});
  std::uint64_t size = 0;
  for (const picture_step &s : p_.history) {
    staircase.add("H", {along(size)}).add("V", {up(s.mapped)});
    size = s.size;
  }
  staircase.add("H", {left + width});
  path(svg_path(staircase).add("V", {floor}).add("Z"), "area");
  path(staircase, "curve");
  if (!p_.copying.empty()) {
    line(left + 14, y_ + 10, left + 38, y_ + 10, "curve");
    write(left + 45, y_ + 14, "in place: pages are added at one address");
    line(left + 14, y_ + 32, left + 38, y_ + 32, "moving");
    write(left + 45, y_ + 36, "by copying: doubled, and at each move old and new at once");
  }

  y_ = floor;
  ticks(left, width, length, "");
  write(left + width, floor + 37,
        fmt::format("bytes appended; backing generation {} at the first growth, {} at the last",
                    p_.history.front().generation, p_.history.back().generation),
        "soft", "end");
  y_ = floor + 60;
}

std::string svg::draw() {
  y_ = 44;
  write(margin, y_, p_.title, "title");
  y_ += 24;
  write(margin, y_, fmt::format("{} \xC2\xB7 address space and memory of one device", p_.device),
        "soft");
  y_ += 34;
  legend();
  if (p_.rows.empty()) {
    write(margin, y_, "nothing is reserved", "soft");
    y_ += 40;
  }
  for (const picture_row &r : p_.rows) row(r);
  memory();
  history();
  return document(p_.title, page_width, y_, style);
}

}  // namespace

std::string draw_as_svg(const picture &p) {
  return svg(p).draw();
}

outcome<void> write_svg(const picture &p, const std::string &path) {
  std::error_code trouble;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, trouble);
  if (!trouble) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out << draw_as_svg(p);
    out.close();
    if (out) return {};
    trouble = std::error_code(errno, std::generic_category());
  }
  return fail(exit_failed, fmt::format("cannot write {}: {}", path, trouble.message()));
}

}  // namespace stillmap::tool
