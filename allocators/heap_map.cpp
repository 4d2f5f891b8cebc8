#include "stillmap/allocators/heap_map.h"

#include <algorithm>

namespace stillmap {
namespace {

bool is_free(heap_part part) {
  return part == heap_part::free || part == heap_part::cached;
}

struct part_row {
  const char *name;
  std::size_t heap_figures::*bytes;
};
constexpr part_row part_rows[heap_parts] = {
    // in the order of heap_part
    {"live", &heap_figures::live},
    {"cached", &heap_figures::cached},
    {"pending_free", &heap_figures::pending_free},
    {"free", &heap_figures::free},
    {"uncommitted", &heap_figures::uncommitted},
    {"unmapping", &heap_figures::unmapping},
    {"aliased", &heap_figures::aliased},
};
const part_row &row_of(heap_part part) {
  return part_rows[static_cast<std::size_t>(part)];
}

void add(heap_figures &sum, const heap_figures &f) {
  for (const part_row &row : part_rows) sum.*row.bytes += f.*row.bytes;
  sum.committed += f.committed;
  sum.reserved += f.reserved;
  sum.requested += f.requested;
  sum.blocks += f.blocks;
  sum.free_pieces += f.free_pieces;
  sum.largest_free = std::max(sum.largest_free, f.largest_free);
  sum.free_whole_pages += f.free_whole_pages;
  sum.page_edges += f.page_edges;
}

// The size of all whole pages between two addresses, in bytes.
std::uint64_t whole_pages(std::uint64_t begin, std::uint64_t end, std::uint64_t page) {
  const std::uint64_t first = (begin + page - 1) / page * page, last = end / page * page;
  return last > first ? last - first : 0;
}

}  // namespace

const char *name_of(heap_part part) {
  return row_of(part).name;
}

heap_figures figures_of(const heap_map::arena &a, std::size_t page_bytes) {
  heap_figures f;
  std::uint64_t piece = 0, piece_end = 0;  // the current range of free memory
  const auto end_piece = [&] {
    if (piece_end == piece) return;
    ++f.free_pieces;
    f.largest_free = std::max<std::size_t>(f.largest_free, piece_end - piece);
    if (page_bytes != 0) f.free_whole_pages += whole_pages(piece, piece_end, page_bytes);
  };
  const auto begins_here = [&](std::uint64_t at) {
    return std::any_of(a.reserved.begin(), a.reserved.end(),
                       [&](const virtual_range &r) { return r.begin.value() == at; });
  };
  for (const heap_extent &s : a.extents) {
    const std::size_t bytes = s.range.bytes;
    f.reserved += bytes;
    if (has_memory(s.part)) f.committed += bytes;
    if (is_free(s.part)) {
      if (s.range.begin.value() != piece_end || begins_here(piece_end)) {
        end_piece();
        piece = piece_end = s.range.begin.value();
      }
      piece_end += bytes;
    }
    f.*row_of(s.part).bytes += bytes;
    if (s.part == heap_part::live) {
      f.requested += s.requested;
      ++f.blocks;
    }
  }
  end_piece();
  if (page_bytes != 0) f.page_edges = f.free + f.cached - f.free_whole_pages;
  return f;
}

heap_figures figures_of(const heap_map &m) {
  heap_figures sum;
  for (const heap_map::arena &a : m.arenas) add(sum, figures_of(a, m.page_bytes));
  return sum;
}

}  // namespace stillmap
