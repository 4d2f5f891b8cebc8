// Draws two heaps side by side in the terminal, to the same scale. Pure: no driver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/allocators/heap_map.h"
#include "tools/stillmap/common/terminal.h"

namespace stillmap::tool {

struct heap_side {
  std::string title, below;  // the lines above and below
  heap_map map;
  std::uint64_t capacity = 0;  // bytes of device memory
};

// Totals of a map. Aliased pages are counted where they are in use.
struct heap_sums {
  std::uint64_t live = 0, free = 0;  // committed bytes
  std::uint64_t pieces = 0;          // contiguous runs of free bytes
  std::uint64_t largest = 0;         // bytes of the largest run
};
heap_sums sums_of(const heap_map &m);

// Cuts the memory of a heap, in address order and arena after arena, into equal cells. Each has the
// share of bytes that are live and that are free; the rest of the capacity is not allocated.
struct heap_cell {
  double live = 0, free = 0;
};
std::vector<heap_cell> cells_of(const heap_map &m, std::uint64_t capacity, std::size_t cells);

// Lines of at most t.width columns, each with a newline.
std::string draw_side_by_side(const heap_side &left, const heap_side &right, const terminal &t);

}  // namespace stillmap::tool
