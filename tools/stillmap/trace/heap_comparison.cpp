#include "tools/stillmap/trace/heap_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace stillmap::tool {
namespace {

// Terminal columns of UTF-8 text without wide characters.
std::size_t columns(const std::string &text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}
std::string padded(std::string text, std::size_t width) {
  return text + std::string(width - std::min(width, columns(text)), ' ');
}

// Shades of a cell: all live, mostly live, half live, hardly live, free, not allocated.
constexpr std::array<const char *, 6> shades = {"█", "▓", "▒", "░", " ", "·"};
constexpr std::array<const char *, 6> letters = {"#", "@", "+", "-", " ", "."};

std::size_t shade_of(const heap_cell &c) {
  if (c.live + c.free < 0.5) return 5;
  const double share = c.live / (c.live + c.free);
  return share > 0.999 ? 0 : share > 0.66 ? 1 : share > 0.33 ? 2 : share > 0.001 ? 3 : 4;
}

}  // namespace

heap_sums sums_of(const heap_map &m) {
  heap_sums out;
  for (const heap_map::arena &a : m.arenas) {
    std::uint64_t piece = 0, end = 0;
    const auto close = [&] {
      if (piece != 0) ++out.pieces;
      out.largest = std::max(out.largest, piece);
      piece = 0;
    };
    for (const heap_extent &s : a.extents) {
      if (!has_memory(s.part) || s.range.begin.value() != end) close();
      end = s.range.begin.value() + s.range.bytes;
      if (!has_memory(s.part)) continue;
      if (s.part == heap_part::live) {
        close();
        out.live += s.range.bytes;
      } else {
        out.free += s.range.bytes;
        piece += s.range.bytes;
      }
    }
    close();
  }
  return out;
}

std::vector<heap_cell> cells_of(const heap_map &m, std::uint64_t capacity, std::size_t cells) {
  std::vector<heap_cell> out(cells);
  const heap_sums all = sums_of(m);
  const double each =
      static_cast<double>(std::max(capacity, all.live + all.free)) / static_cast<double>(cells);
  if (!(each > 0)) return out;
  double at = 0;
  for (const heap_map::arena &a : m.arenas) {
    for (const heap_extent &s : a.extents) {
      if (!has_memory(s.part)) continue;
      const double end = at + static_cast<double>(s.range.bytes);
      for (auto i = static_cast<std::size_t>(at / each); i < cells; ++i) {
        const double from = std::max(at, static_cast<double>(i) * each);
        const double to = std::min(end, static_cast<double>(i + 1) * each);
        if (to <= from) break;
        (s.part == heap_part::live ? out[i].live : out[i].free) += (to - from) / each;
      }
      at = end;
    }
  }
  return out;
}

std::string draw_side_by_side(const heap_side &left, const heap_side &right, const terminal &t) {
  constexpr std::size_t rows = 14, between = 3;
  const std::size_t width =
      std::min<std::size_t>(56, (static_cast<std::size_t>(t.width) - between - 1) / 2);
  const auto cut = [&](const std::string &text) {
    return padded(columns(text) > width ? text.substr(0, width) : text, width);
  };
  const std::string space(between, ' ');
  std::string out = cut(left.title) + space + right.title.substr(0, width) + '\n';
  const auto a = cells_of(left.map, left.capacity, rows * width);
  const auto b = cells_of(right.map, right.capacity, rows * width);
  const auto line = [&](const std::vector<heap_cell> &cells, std::size_t row) {
    std::string text;
    std::size_t now = shades.size();
    for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
      const std::size_t shade = shade_of(cells[i]);
      if (t.colour && shade != now)
        text += shade == 0 ? "\x1b[32m" : shade == 5 ? "\x1b[2m" : "\x1b[33m";
      now = shade;
      text += t.utf8 ? shades[shade] : letters[shade];
      if (t.colour && (i + 1 == (row + 1) * width || shade_of(cells[i + 1]) != shade))
        text += "\x1b[0m";
    }
    return text;
  };
  for (std::size_t row = 0; row < rows; ++row) {
    out += line(a, row) + space + line(b, row) + '\n';
  }
  out += cut(left.below) + space + right.below.substr(0, width) + '\n';
  const auto &l = t.utf8 ? shades : letters;
  out += fmt::format("{} live  {} {} {} partly free  '{}' free  {} not in use\n", l[0], l[1], l[2],
                     l[3], l[4], l[5]);
  return out;
}

}  // namespace stillmap::tool
