#include "stillmap/allocators/report/internal/heap_layout.h"

#include <algorithm>
#include <bit>

namespace stillmap {
namespace {

// In pixels. Adjacent pieces that are narrower are drawn together until they are as wide.
constexpr double narrowest = 1.0;

class layouter {
 public:
  layouter(double row_width, std::uint64_t bytes_per_row)
      : width_(row_width), per_byte_(row_width / static_cast<double>(bytes_per_row)) {}

  // `joins`: it begins where the piece before it ends.
  void add(const heap_extent &s, bool joins) {
    const bool narrow = static_cast<double>(s.range.bytes) * per_byte_ < narrowest;
    if (!narrow || !joins) end_bundle();
    if (bundled_.pieces == 0) bundled_.begin = s.range.begin.value();
    ++bundled_.pieces;
    bundled_.bytes += s.range.bytes;
    of_paint_[static_cast<std::size_t>(paint_of(s))] += s.range.bytes;
    if (s.part == heap_part::live) bundled_.live += s.range.bytes;
    bundled_.requested += s.requested;
    if (static_cast<double>(bundled_.bytes) * per_byte_ >= narrowest) end_bundle();
  }

  void add_gap(drawn_piece gap, double wide) {
    end_bundle();
    gap.color = paint::gap;
    out_.pieces.push_back(std::move(gap));
    if (x_ + wide > width_) return;  // the end of the row marks it
    if (x_ == 0) return;
    out_.pieces.back().parts.push_back({row_, x_, wide});
    x_ += wide;
  }

  drawn_arena finish() {
    end_bundle();
    out_.rows = x_ > 0 ? row_ + 1 : row_;
    return std::move(out_);
  }

 private:
  void place(drawn_piece &p, double wide) {
    while (wide > 1e-6) {
      const double here = std::min(wide, width_ - x_);
      p.parts.push_back({row_, x_, here});
      x_ += here;
      wide -= here;
      if (x_ < width_ - 1e-6) continue;
      x_ = 0;
      ++row_;
    }
  }
  void end_bundle() {
    if (bundled_.pieces == 0) return;
    const auto most = std::max_element(of_paint_.begin(), of_paint_.end());
    bundled_.color = static_cast<paint>(most - of_paint_.begin());
    const double wide = static_cast<double>(bundled_.bytes) * per_byte_;
    out_.pieces.push_back(std::move(bundled_));
    place(out_.pieces.back(), wide);
    bundled_ = {};
    of_paint_ = {};
  }

  const double width_, per_byte_;
  drawn_arena out_;
  unsigned row_ = 0;
  double x_ = 0;
  drawn_piece bundled_;  // the pieces since the last one that was wide enough
  std::array<std::uint64_t, paints> of_paint_{};
};

}  // namespace

paint paint_of(const heap_extent &s) {
  if (!has_memory(s.part)) return paint::gap;
  if (s.part == heap_part::pending_free) return paint::pending_free;
  if (s.part != heap_part::live) return paint::free;
  const auto bound = std::lower_bound(live_bounds.begin(), live_bounds.end(), s.range.bytes);
  return static_cast<paint>(bound - live_bounds.begin());
}

drawn_arena lay_out(const heap_map::arena &a, double row_width, std::uint64_t bytes_per_row) {
  // Many gaps are drawn thinner, so that together they take at most a tenth of the picture.
  std::uint64_t memory = 0;
  std::size_t gaps = 0;
  bool in_gap = true;
  for (const heap_extent &s : a.extents) {
    const bool gap = !has_memory(s.part);
    if (gap && !in_gap) ++gaps;
    in_gap = gap;
    if (!gap) memory += s.range.bytes;
  }
  const double all = row_width * static_cast<double>(memory) / static_cast<double>(bytes_per_row);
  const double gap_width =
      std::clamp(0.1 * all / static_cast<double>(std::max<std::size_t>(gaps, 1)), 0.4, 3.0);

  layouter out(row_width, bytes_per_row);
  drawn_piece gap;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < a.extents.size(); ++i) {
    const heap_extent &s = a.extents[i];
    const std::uint64_t begin = s.range.begin.value();
    if (!has_memory(s.part)) {
      if (gap.bytes == 0) gap.begin = begin;
      gap.bytes += s.range.bytes;
      if (s.part == heap_part::aliased) gap.aliased += s.range.bytes;
      if (s.part == heap_part::unmapping) gap.unmapping += s.range.bytes;
    } else {
      // A reservation that is not adjacent to the one before it begins behind a gap too.
      if (gap.bytes != 0 || (end != 0 && begin != end)) {
        if (gap.bytes == 0) gap.begin = end;
        out.add_gap(std::move(gap), gap_width);
      }
      gap = {};
      out.add(s, begin == end);
    }
    end = begin + s.range.bytes;
  }
  return out.finish();
}

std::uint64_t row_bytes_for(std::uint64_t memory, unsigned rows) {
  const std::uint64_t least = std::max<std::uint64_t>(memory / std::max(rows, 1u), 4096);
  return std::bit_ceil(least);
}

}  // namespace stillmap
