// Facts about an arena's blocks, for heap maps and history. Not on the fast path.
#include "stillmap/allocators/engine/arena.h"
#include "stillmap/allocators/engine/thread_stream.h"

namespace stillmap {
namespace {

heap_part part_of(extent_state state) {
  constexpr heap_part parts[] = {heap_part::uncommitted, heap_part::free, heap_part::live,
                                 heap_part::unmapping, heap_part::aliased};
  return parts[static_cast<std::size_t>(state)];
}

}  // namespace

arena::block_facts arena::facts_of(std::uint64_t address) const {
  block_facts out;
  out.usable = usable_size(address);
  out.stream = stream;
  if (out.usable == 0) return out;
  const block_ref block = blocks_.find(address);
  if (block.in_slab()) {
    const slab &s = *block.as_slab();
    const unsigned place = block.index();
    out.requested = out.usable - s.slack[place];
    out.cross_stream = (s.cross_stream[place / 64] >> (place % 64) & 1) != 0;
  } else {
    out.requested = out.usable - block.as_extent()->slack;
    out.cross_stream = block.as_extent()->cross_stream;
  }
  return out;
}

std::size_t arena::pending_bytes(std::uint64_t address) const {
  const block_ref block = blocks_.find(address);
  return block.in_slab() ? block.as_slab()->block_bytes
                         : static_cast<std::size_t>(block.as_extent()->bytes);
}

void arena::describe(std::vector<heap_extent> &out) const {
  extents.each([&](const extent &s) {
    lock.assume_held();
    describe(s, out);
  });
}

void arena::describe(const extent &s, std::vector<heap_extent> &out) const {
  heap_extent whole;
  whole.range = s.range();
  whole.part = part_of(s.state);
  if (s.state != extent_state::live) {
    out.push_back(whole);
    return;
  }
  if (s.cached) whole.part = heap_part::cached;
  if (s.allocated) whole.requested = static_cast<std::size_t>(s.bytes) - s.slack;
  if (s.cached || s.allocated) {
    out.push_back(whole);
    return;
  }
  const block_ref first = blocks_.find(s.begin);
  if (!first || !first.in_slab()) {  // freed, waiting for other streams
    whole.part = heap_part::pending_free;
    out.push_back(whole);
    return;
  }
  const slab &of = *first.as_slab();
  for (unsigned place = 0; place < of.block_count; ++place) {
    heap_extent piece;
    piece.range = {device_address(of.address(place)), of.block_bytes};
    piece.in_slab = true;
    if (of.is_free(place)) {
      piece.part = heap_part::cached;
    } else if (usable_size(of.address(place)) == 0) {
      piece.part = heap_part::pending_free;
    } else {
      piece.part = heap_part::live;
      piece.requested = of.block_bytes - of.slack[place];
    }
    out.push_back(piece);
  }
  // A slab has no remainder: slab::blocks_in.
}

void arena::notify_recalled(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const {
  history_->push({.action = history_action::page_move,
                  .address = to,
                  .bytes = static_cast<std::size_t>(bytes),
                  .stream = thread_stream::reported(stream),
                  .from = from});
}

}  // namespace stillmap
