// What an arena says about its blocks: for maps and for history. Nothing here is on the fast path.
#include "stillmap/allocators/internal/arena.h"

namespace stillmap {
namespace {

heap_part part_of(segment_state s) {
  switch (s) {
    case segment_state::unbacked:
      return heap_part::unbacked;
    case segment_state::free:
      return heap_part::free;
    case segment_state::live:
      return heap_part::live;
    case segment_state::leaving:
      return heap_part::leaving;
    case segment_state::lent:
      break;
  }
  return heap_part::lent;
}

}  // namespace

arena::block_facts arena::facts_of(std::uint64_t address) const {
  block_facts out;
  out.usable = usable_size(address);
  if (out.usable == 0) return out;
  const block_ref block = blocks_.find(address);
  if (block.in_slab()) {
    const slab &s = *block.of_slab();
    const unsigned place = block.place();
    out.requested = out.usable - s.slack[place];
    out.used_elsewhere = (s.used_elsewhere[place / 64] >> (place % 64) & 1) != 0;
  } else {
    out.requested = out.usable - block.whole()->slack;
    out.used_elsewhere = block.whole()->used_elsewhere;
  }
  return out;
}

std::size_t arena::size_of(const held_block &h) const {
  const block_ref block = blocks_.find(h.address);
  return block.in_slab() ? block.of_slab()->block_bytes
                         : static_cast<std::size_t>(block.whole()->bytes);
}

void arena::describe(const segment &s, std::vector<heap_segment> &out) const {
  heap_segment whole;
  whole.range = s.range();
  whole.part = part_of(s.state);
  if (s.state != segment_state::live) {
    out.push_back(whole);
    return;
  }
  if (s.kept) whole.part = heap_part::cached;
  if (s.handed_out) whole.requested = static_cast<std::size_t>(s.bytes) - s.slack;
  if (s.kept || s.handed_out) {
    out.push_back(whole);
    return;
  }
  const block_ref first = blocks_.find(s.begin);
  if (!first || !first.in_slab()) {  // freed, and others were using it
    whole.part = heap_part::held;
    out.push_back(whole);
    return;
  }
  const slab &of = *first.of_slab();
  for (unsigned place = 0; place < of.places; ++place) {
    heap_segment piece;
    piece.range = {device_address(of.address(place)), of.block_bytes};
    piece.in_slab = true;
    if (of.is_free(place)) {
      piece.part = heap_part::cached;
    } else if (usable_size(of.address(place)) == 0) {
      piece.part = heap_part::held;
    } else {
      piece.part = heap_part::live;
      piece.requested = of.block_bytes - of.slack[place];
    }
    out.push_back(piece);
  }
  // Classes that do not divide the slab leave nothing over; see slab::places_for.
}

void arena::tell_recalled(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const {
  history_event e;
  e.action = history_action::page_move;
  e.address = to;
  e.from = from;
  e.bytes = static_cast<std::size_t>(bytes);
  e.stream = stream;
  history->push(e);
}

}  // namespace stillmap
