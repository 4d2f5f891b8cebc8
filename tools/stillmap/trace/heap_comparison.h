// Two heaps beside each other, drawn in the terminal: what the memory of a device is
// used for, to the same scale. Values only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/allocators/heap_map.h"
#include "tools/stillmap/common/terminal.h"

namespace stillmap::tool {

struct heap_side {
  std::string title, below;  // a line above, and one under it
  heap_map map;
  std::uint64_t capacity = 0;  // bytes of device memory there are
};

// What a map says in sum. Pages at two addresses are counted where they are used.
struct heap_sums {
  std::uint64_t live = 0, free = 0;  // bytes with memory behind them
  std::uint64_t pieces = 0;          // the free bytes lie in
  std::uint64_t largest = 0;         // of them
};
heap_sums sums_of(const heap_map &m);

// The memory of a heap in address order, arena after arena, cut into equal cells: the share of
// each that is live and the share that is free; what is left of the capacity was never got.
struct heap_cell {
  double live = 0, free = 0;
};
std::vector<heap_cell> cells_of(const heap_map &m, std::uint64_t capacity, std::size_t cells);

// Lines with newlines at their ends, at most t.width columns.
std::string draw_side_by_side(const heap_side &left, const heap_side &right, const terminal &t);

}  // namespace stillmap::tool
