// Segments that expand: the part of segments.h that maps and unmaps.
#include <algorithm>

#include "bench/replay/baselines/segments.h"
#include "bench/replay/internal/failure.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::replay {
namespace {

using namespace stillmap::literals;

constexpr std::size_t small_chunk = 2_MiB;
constexpr std::size_t large_chunk = 20_MiB;

}  // namespace

// A free, mapped block of at least `size`, in the free set: the first place where free and unmapped
// neighbours are enough together is mapped.
result<segment_block *> segments::expand(std::size_t size, stream_handle on, bool small) {
  segment_block *b = room_for(size, on, small);
  if (b == nullptr) {
    STILLMAP_ASSIGN_OR_RETURN(b, new_expanding_segment(on, small));
  }
  if (!b->mapped) {
    STILLMAP_ASSIGN_OR_RETURN(b, map_front(b, std::min(size, b->size)));
  }
  while (b->size < size) {
    segment_block *const next = b->after;
    if (next->mapped) {  // and free; unmapped addresses between them kept it from being joined
      free_of(*next).erase(next);
      free_of(*b).erase(b);
      join(b, next);
      free_of(*b).insert(b);
      continue;
    }
    STILLMAP_ASSIGN_OR_RETURN(b, map_front(next, std::min(size - b->size, next->size)));
  }
  return b;
}

segment_block *segments::room_for(std::size_t size, stream_handle on, bool small) {
  const auto usable = [](const segment_block *b) {
    return b != nullptr && b->free && b->waiting == 0;
  };
  for (segment_block *const u : unmapped_[small ? 0 : 1]) {
    if (u->on != on) continue;
    segment_block *const begin = usable(u->before) && u->before->mapped ? u->before : u;
    std::size_t room = 0;
    for (const segment_block *b = begin; usable(b) && room < size; b = b->after) room += b->size;
    if (room >= size) return begin;
  }
  return nullptr;
}

result<segment_block *> segments::new_expanding_segment(stream_handle on, bool small) {
  auto made = std::make_unique<expanding_segment>();
  made->chunk = small ? small_chunk : large_chunk;
  const std::uint64_t memory = device_.total_memory().bytes();
  const std::size_t bytes = round_up(memory + memory / 8, made->chunk);
  STILLMAP_ASSIGN_OR_RETURN(const device_address at,
                            drv_.reserve_addresses(bytes, 0, device_address()));
  made->range = {at, bytes};
  made->on = on;
  made->small = small;
  segment_block *const b = new_block();
  b->at = at.value();
  b->size = bytes;
  b->on = on;
  b->small = small;
  b->mapped = false;
  b->of = made.get();
  growing_.push_back(std::move(made));
  unmapped_[small ? 0 : 1].insert(b);
  return b;
}

// Maps the first `size` bytes of an unmapped block, rounded up to whole chunks. Returns the free
// block they are now part of, in the free set. On failure nothing has changed.
result<segment_block *> segments::map_front(segment_block *b, std::size_t size) {
  expanding_segment &s = *b->of;
  const std::size_t bytes = round_up(size, s.chunk);
  const virtual_range range{device_address(b->at), bytes};
  // PyTorch creates all chunks before it maps one: where memory is short, nothing is unmapped.
  status fine = create_chunks(s, range);
  std::size_t mapped = 0;
  for (; mapped < bytes && fine; mapped += s.chunk) {
    const device_address at = range.begin + mapped;
    fine = drv_.map(at, s.chunk, s.chunks.at(at.value()));
    if (!fine) break;
  }
  const access_grant all{on_device(device_.ordinal()), access_mode::read_write};
  if (fine) fine = drv_.set_access(range, &all, 1);
  if (!fine) {
    if (mapped != 0) report_if_failed(drv_.unmap({range.begin, mapped}));
    release_chunks(s, range);
    return tl::unexpected<error>(fine.error());
  }
  unmapped_[b->small ? 0 : 1].erase(b);
  if (b->size > bytes) split(b, bytes);
  b->mapped = true;
  return put_back(b);
}

// Memory for the whole range, or as far as there is.
status segments::create_chunks(expanding_segment &s, virtual_range range) {
  physical_properties what;
  what.location = on_device(device_.ordinal());
  for (std::size_t at = 0; at < range.bytes; at += s.chunk) {
    if (!held_.fits(s.chunk)) {
      const operation_scope scope("segments");
      return make_error(errc::out_of_memory, "the limit is reached", range.bytes,
                        held_.limit() - held_.now());
    }
    STILLMAP_ASSIGN_OR_RETURN(const physical_handle made, drv_.create_physical(s.chunk, what));
    held_.add(s.chunk);
    s.chunks.emplace((range.begin + at).value(), made);
  }
  return {};
}

// Releases the memory of chunks that are not mapped; the range may have some without memory.
void segments::release_chunks(expanding_segment &s, virtual_range range) {
  for (std::size_t at = 0; at < range.bytes; at += s.chunk) {
    const auto chunk = s.chunks.find((range.begin + at).value());
    if (chunk == s.chunks.end()) continue;
    report_if_failed(drv_.release_physical(chunk->second));
    s.chunks.erase(chunk);
    held_.drop(s.chunk);
  }
}

// Unmaps and releases the whole chunks inside a free block, after the work of its stream; no other
// stream uses it any more. Each chunk is unmapped by a call of its own, as PyTorch does.
status segments::release_pages_of(segment_block *b) {
  expanding_segment &s = *b->of;
  const std::size_t from = round_up(b->at - s.range.begin.value(), s.chunk);
  const std::size_t to = round_down(b->at + b->size - s.range.begin.value(), s.chunk);
  if (to <= from) return {};
  STILLMAP_RETURN_IF_ERROR(drv_.synchronize_stream(s.on));
  status fine;
  virtual_range range{s.range.begin + from, 0};
  while (range.bytes < to - from) {
    const virtual_range chunk{range.begin + range.bytes, s.chunk};
    fine = drv_.unmap(chunk);
    if (!fine) break;
    release_chunks(s, chunk);
    range.bytes += s.chunk;
  }
  if (range.bytes == 0) return fine;
  free_of(*b).erase(b);
  if (b->at != range.begin.value()) {  // the part before the first whole chunk stays
    split(b, range.begin.value() - b->at);
    free_of(*b).insert(b);
    b = b->after;
    free_of(*b).erase(b);
  }
  if (b->size > range.bytes) split(b, range.bytes);
  b->mapped = false;
  auto &unmapped = unmapped_[b->small ? 0 : 1];
  if (b->after != nullptr && !b->after->mapped) {
    unmapped.erase(b->after);
    join(b, b->after);
  }
  if (b->before != nullptr && !b->before->mapped) {
    unmapped.erase(b->before);
    b = join(b->before, b);
  }
  if (b->size == s.range.bytes) return drop_expanding_segment(b);
  unmapped.insert(b);
  return fine;
}

// Gives up the addresses of a segment without memory, whose only block is `b`.
status segments::drop_expanding_segment(segment_block *b) {
  const auto of = std::find_if(growing_.begin(), growing_.end(),
                               [&](const auto &s) { return s.get() == b->of; });
  const status done = drv_.free_addresses((*of)->range);
  if (!done) {
    unmapped_[b->small ? 0 : 1].insert(b);
    return done;
  }
  growing_.erase(of);
  recycle(b);
  return {};
}

void segments::drop_expanding_segments() {
  for (const auto &s : growing_) {
    for (const auto &[at, handle] : s->chunks) {
      report_if_failed(drv_.unmap({device_address(at), s->chunk}));
      report_if_failed(drv_.release_physical(handle));
    }
    report_if_failed(drv_.free_addresses(s->range));
  }
}

}  // namespace stillmap::replay
