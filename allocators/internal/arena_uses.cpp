// Blocks that other streams use, and what becomes of them when they are freed.
#include <algorithm>
#include <new>

#include "stillmap/allocators/internal/arena.h"

namespace stillmap {

bool arena::record_use(std::uint64_t address, stream_ref other) {
  if (usable_size(address) == 0) return false;
  if (other == stream) return true;
  add_use(address, other);
  const block_ref block = blocks_.find(address);
  if (block.in_slab()) {
    const unsigned place = block.index();
    block.as_slab()->cross_stream[place / 64] |= std::uint64_t{1} << (place % 64);
  } else {
    block.as_extent()->cross_stream = true;
  }
  return true;
}

// May run out of host memory, and then changes nothing.
void arena::add_use(std::uint64_t address, stream_ref other) {
  const auto [it, fresh] = uses_.try_emplace(address);
  pending_block &b = it->second;
  const auto same = [&](const stream_use &u) { return u.stream == other; };
  if (std::any_of(b.uses.begin(), b.uses.end(), same)) return;
  try {
    b.uses.push_back({.stream = other});
  } catch (const std::bad_alloc &) {
    if (fresh) uses_.erase(it);
    throw;
  }
  b.address = address;
}

pending_block &arena::defer_free(std::uint64_t address) {
  const block_ref block = blocks_.find(address);
  pending_block &b = uses_.find(address)->second;
  b.freed = true;
  if (block.in_slab()) {
    slab &s = *block.as_slab();
    count_free(s.block_bytes, s.slack[block.index()]);
    counters_.pending_free += s.block_bytes;
  } else {
    extent &s = *block.as_extent();
    s.allocated = false;
    count_free(s.bytes, s.slack);
    counters_.pending_free += s.bytes;
  }
  return b;
}

void arena::complete_free(std::uint64_t address) {
  const block_ref block = blocks_.find(address);
  uses_.erase(address);
  if (block.in_slab()) {
    slab &s = *block.as_slab();
    const unsigned place = block.index();
    s.cross_stream[place / 64] &= ~(std::uint64_t{1} << (place % 64));
    counters_.pending_free -= s.block_bytes;
    return_to_slab(s, place);
  } else {
    extent &s = *block.as_extent();
    s.cross_stream = false;
    counters_.pending_free -= s.bytes;
    cache(s);
  }
}

}  // namespace stillmap
