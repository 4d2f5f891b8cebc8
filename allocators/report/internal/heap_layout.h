// The layout of a heap picture: rectangles in rows. No text, no colours. Internal.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "stillmap/allocators/heap_map.h"

namespace stillmap {

// The colours of a picture. Live blocks have one for each range of sizes, up to the bounds below.
enum class paint : std::uint8_t { live_0, live_1, live_2, live_3, live_4, pending_free, free, gap };
inline constexpr std::size_t paints = 8;
inline constexpr std::array<std::size_t, 4> live_bounds = {
    std::size_t{1} << 20, std::size_t{8} << 20, std::size_t{64} << 20, std::size_t{512} << 20};
paint paint_of(const heap_extent &s);

struct drawn_piece {
  paint color = paint::free;
  std::uint64_t begin = 0, bytes = 0;  // the address range
  std::uint64_t pieces = 0;            // more than 1: pieces that are drawn together
  std::uint64_t live = 0;              // bytes of live blocks in it
  std::uint64_t requested = 0;
  std::uint64_t aliased = 0, unmapping = 0;  // bytes, of a gap
  struct part {
    unsigned row;
    double x, width;
  };
  std::vector<part> parts;  // one for each row that it is in
};

struct drawn_arena {
  std::vector<drawn_piece> pieces;
  unsigned rows = 0;
};

// `row_width` and all widths are in pixels, `bytes_per_row` counts memory; gaps take extra room.
drawn_arena lay_out(const heap_map::arena &a, double row_width, std::uint64_t bytes_per_row);
// The power of two of bytes per row at which `memory` bytes take at most `rows` rows.
std::uint64_t row_bytes_for(std::uint64_t memory, unsigned rows);

}  // namespace stillmap
