#include "stillmap/allocators/engine/block_report.h"

#include "stillmap/allocators/engine/slab.h"

namespace stillmap {
namespace {

heap_part part_of(extent_state state) {
  constexpr heap_part parts[] = {heap_part::uncommitted, heap_part::free, heap_part::live,
                                 heap_part::unmapping, heap_part::aliased};
  return parts[static_cast<std::size_t>(state)];
}

}  // namespace

block_facts facts_of(const block_store &blocks, std::uint64_t address) {
  return blocks.usable_size(address) != 0 ? facts_of_pending(blocks, address) : block_facts{};
}

block_facts facts_of_pending(const block_store &blocks, std::uint64_t address) {
  block_facts out;
  const block_ref block = blocks.find(address);
  if (block.in_slab()) {
    const slab &s = *block.as_slab();
    const unsigned place = block.index();
    out.usable = s.block_bytes;
    out.requested = out.usable - s.slack[place];
    out.cross_stream = (s.cross_stream[place / 64] >> (place % 64) & 1) != 0;
  } else {
    const extent &s = *block.as_extent();
    out.usable = static_cast<std::size_t>(s.bytes);
    out.requested = out.usable - s.slack;
    out.cross_stream = s.cross_stream;
  }
  return out;
}

std::optional<virtual_range> block_around(const block_store &blocks, std::uint64_t address) {
  const extent &around = *blocks.extents.at(address);
  std::uint64_t begin = around.begin;
  if (const block_ref first = blocks.find(begin); first && first.in_slab()) {
    begin += (address - begin) / first.as_slab()->block_bytes * first.as_slab()->block_bytes;
  }
  const block_facts facts = facts_of(blocks, begin);
  if (facts.usable == 0 || address - begin >= facts.requested) return std::nullopt;
  return virtual_range{device_address(begin), facts.requested};
}

void describe(const block_store &blocks, std::vector<heap_extent> &out) {
  blocks.extents.each([&](const extent &s) {
    heap_extent whole;
    whole.range = s.range();
    whole.part = s.cached ? heap_part::cached : part_of(s.state);
    if (s.allocated) whole.requested = static_cast<std::size_t>(s.bytes) - s.slack;
    if (s.state != extent_state::live || s.cached || s.allocated) {
      out.push_back(whole);
      return;
    }
    const block_ref first = blocks.find(s.begin);
    if (!first || !first.in_slab()) {  // freed, waiting for other streams
      whole.part = heap_part::pending_free;
      out.push_back(whole);
      return;
    }
    const slab &of = *first.as_slab();
    for (unsigned place = 0; place < of.block_count; ++place) {  // no remainder: slab::blocks_in
      heap_extent piece;
      piece.range = {device_address(of.address(place)), of.block_bytes};
      piece.in_slab = true;
      if (of.is_free(place)) {
        piece.part = heap_part::cached;
      } else if (blocks.uses.is_deferred(of.address(place))) {
        piece.part = heap_part::pending_free;
      } else {
        piece.part = heap_part::live;
        piece.requested = of.block_bytes - of.slack[place];
      }
      out.push_back(piece);
    }
  });
}

}  // namespace stillmap
