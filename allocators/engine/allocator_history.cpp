// The versions of allocate and free that notify the history, the observer and the trace, and the
// other notifications. An allocation is recorded after it was made, and a free before it is done,
// so that the events of one address are in order across threads.
#include <algorithm>

#include "stillmap/allocators/engine/allocator_core.h"
#include "stillmap/allocators/engine/thread_stream.h"

namespace stillmap {
namespace {

history_event about(history_action action, const arena &a, const virtual_range &range)
    STILLMAP_EXCLUDES(a.lock) {
  return {.action = action,
          .address = range.begin.value(),
          .bytes = range.bytes,
          .stream = thread_stream::reported(a.now().stream)};
}

}  // namespace

result<void *> allocator_core::allocate_notified(std::size_t bytes, stream_ref s,
                                                 const allocate_options &options) {
  if (history.holds_requests()) return refuse_suspended();
  const call_stack stack = history.capture();
  const auto block = allocate_slow(bytes, s, options);
  if (!block) notify_failed(block.error(), bytes, s, stack);
  if (!block || *block == nullptr) return block;
  if (recorder_) recorder_->allocated(this, *block, bytes, device_.ordinal(), s);
  history_event e{.action = history_action::allocate,
                  .address = reinterpret_cast<std::uintptr_t>(*block),
                  .bytes = bytes,
                  .stream = s};
  if (const arena *const a = addresses_.at(e.address)) {
    const lock_guard lock(a->lock);
    e.usable = a->usable_size(e.address);
  }
  history.push(e, &stack);
  return block;
}

result<void *> allocator_core::refuse_suspended() const noexcept {
  constexpr const char *op = "caching_allocator::allocate";
  return with_host_memory(op, [&]() -> result<void *> {
    const auto gone = [&](const block_record &b) {
      return b.tag == options_.tag && b.released_bytes != 0;
    };
    const std::vector<block_record> blocks = device_.space().blocks();
    const error e{
        make_error_code(errc::busy), op,
        std::any_of(blocks.begin(), blocks.end(), gone)
            ? "memory of the allocator was forgotten, or sent away, and cannot come back; "
              "make a new allocator"
            : "memory of the allocator is suspended; resume its tag first"};
    return tl::unexpected(e.about("tag " + options_.tag));
  });
}

// Records first: once the block is free, another thread may get its address. A pointer that is not
// a block is unknown to the recorder too.
status allocator_core::free_notified(void *block, std::optional<stream_ref> last_used_on) {
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  arena *const a = in_child() ? nullptr : addresses_.at(address);
  if (a == nullptr) return free_slow(block, last_used_on);
  if (last_used_on) {  // all that can fail comes before the records
    const status used = with_host_memory("caching_allocator::free", [&]() -> status {
      const lock_guard lock(a->lock);
      a->record_use(address, thread_stream::key_of(*last_used_on));
      return {};
    });
    if (!used) return used;
  }
  if (recorder_) {
    if (last_used_on) recorder_->used(block, device_.ordinal(), *last_used_on);
    recorder_->freed(block);
  }
  const call_stack stack = history.capture();
  arena::block_facts known;
  {
    const lock_guard lock(a->lock);
    known = a->facts_of(address);
  }
  if (known.usable != 0) {
    history_event e{.action = history_action::free_requested,
                    .address = address,
                    .bytes = known.requested,
                    .usable = known.usable,
                    .stream = thread_stream::reported(known.stream)};
    history.push(e, &stack);
    if (!known.cross_stream) {
      e.action = history_action::free_completed;
      history.push(e);
    }
  }
  return free_slow(block, last_used_on);
}

void allocator_core::mark_iteration() {
  if (recorder_) recorder_->iteration();
}

void allocator_core::close_trace() {
  if (recorder_) recorder_->owner_destroyed(this);
}

void allocator_core::notify_failed(const error &e, std::size_t bytes, stream_ref s,
                                   const call_stack &stack) {
  if (!is_device_short(e)) return;
  history.push({.action = history_action::out_of_memory,
                .bytes = bytes,
                .stream = s,
                .available = static_cast<std::size_t>(e.limit)},
               &stack);
}

void allocator_core::notify_free_completed(const arena &a, std::uint64_t address) {
  if (!history.enabled()) return;
  const std::size_t bytes = a.pending_bytes(address);
  history.push({.action = history_action::free_completed,
                .address = address,
                .bytes = bytes,
                .usable = bytes,
                .stream = thread_stream::reported(a.stream)});
}

void allocator_core::notify_grown(const arena &a, const extent_map::carved_extent &place,
                                  const page_supply &supply) {
  if (!history.enabled()) return;
  history_event e;
  e.stream = thread_stream::reported(a.now().stream);
  e.address = place.missing.begin.value();
  e.action = history_action::page_move;
  for (const taken_pages &t : supply.moved) {
    for (const extent *s : t.extents) {
      e.from = s->begin;
      e.bytes = static_cast<std::size_t>(s->bytes);
      history.push(e);
      e.address += s->bytes;
    }
  }
  e.action = history_action::page_map;
  e.from = 0;
  e.bytes = supply.created.size() * page();
  if (e.bytes != 0) history.push(e);
}

void allocator_core::notify_unmapped(const arena &a, const virtual_range &range) {
  if (history.enabled()) history.push(about(history_action::page_unmap, a, range));
}

void allocator_core::notify_reserved(const arena &a, const virtual_range &range) {
  if (history.enabled()) history.push(about(history_action::reserve, a, range));
}

// A chunk is addresses and memory at once.
void allocator_core::notify_chunk(const arena &a, const virtual_range &range) {
  notify_reserved(a, range);
  if (history.enabled()) history.push(about(history_action::page_map, a, range));
}

}  // namespace stillmap
