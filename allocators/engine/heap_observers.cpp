#include "stillmap/allocators/engine/heap_observers.h"

#include <utility>

#include "stillmap/allocators/engine/block_report.h"
#include "stillmap/allocators/engine/thread_stream.h"

namespace stillmap {

heap_observers::heap_observers(std::shared_ptr<heap_observer> observer,
                               std::shared_ptr<trace_recorder> recorder, int device)
    : history(std::move(observer)), recorder_(std::move(recorder)), device_(device) {
  if (recorder_) history.notify_requests();
}

// ---- requests ----

void heap_observers::allocated(const void *allocator, const arena *in, void *block,
                               std::size_t bytes, stream_ref s, const call_stack &stack) {
  if (recorder_) recorder_->allocated(allocator, block, bytes, device_, s);
  history_event e{.action = history_action::allocate,
                  .address = reinterpret_cast<std::uintptr_t>(block),
                  .bytes = bytes,
                  .stream = s};
  if (in != nullptr) {
    const lock_guard lock(in->lock());
    e.usable = in->blocks().usable_size(e.address);
  }
  history.push(e, &stack);
}

void heap_observers::failed(const error &e, std::size_t bytes, stream_ref s,
                            const call_stack &stack) {
  history.push({.action = history_action::out_of_memory,
                .bytes = bytes,
                .stream = s,
                .available = static_cast<std::size_t>(e.limit)},
               &stack);
}

void heap_observers::used(void *block, stream_ref s) const {
  if (recorder_) recorder_->used(block, device_, s);
}

// A pointer that is not a block is unknown to the recorder too.
void heap_observers::free_requested(const arena &a, void *block,
                                    std::optional<stream_ref> last_used_on,
                                    const call_stack &stack) {
  if (recorder_) {
    if (last_used_on) recorder_->used(block, device_, *last_used_on);
    recorder_->freed(block);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  block_facts known;
  stream_ref stream;
  {
    const lock_guard lock(a.lock());
    known = facts_of(a.blocks(), address);
    stream = a.service_locked().stream;
  }
  if (known.usable == 0) return;
  history_event e{.action = history_action::free_requested,
                  .address = address,
                  .bytes = known.requested,
                  .usable = known.usable,
                  .stream = thread_stream::reported(stream)};
  history.push(e, &stack);
  if (known.cross_stream) return;
  e.action = history_action::free_completed;
  history.push(e);
}

void heap_observers::free_completed(const arena &a, std::uint64_t address) {
  if (!enabled()) return;
  const block_facts known = facts_of_pending(a.blocks(), address);
  history.push({.action = history_action::free_completed,
                .address = address,
                .bytes = known.requested,
                .usable = known.usable,
                .stream = thread_stream::reported(a.service_locked().stream)});
}

void heap_observers::iteration_began() const {
  if (recorder_) recorder_->iteration();
}

void heap_observers::allocator_destroyed(const void *allocator) const {
  if (recorder_) recorder_->owner_destroyed(allocator);
}

// ---- pages ----

void heap_observers::page_moved(const arena &a, std::uint64_t to, std::uint64_t from,
                                std::size_t bytes) {
  if (!enabled()) return;
  history.push({.action = history_action::page_move,
                .address = to,
                .bytes = bytes,
                .stream = thread_stream::reported(a.service_now().stream),
                .from = from});
}

void heap_observers::pages_mapped(const arena &a, const virtual_range &range) {
  if (range.bytes != 0) page_event(history_action::page_map, a, range);
}

void heap_observers::pages_unmapped(const arena &a, const virtual_range &range) {
  page_event(history_action::page_unmap, a, range);
}

void heap_observers::addresses_reserved(const arena &a, const virtual_range &range) {
  page_event(history_action::reserve, a, range);
}

void heap_observers::page_event(history_action action, const arena &a, const virtual_range &range) {
  if (!enabled()) return;
  history.push({.action = action,
                .address = range.begin.value(),
                .bytes = range.bytes,
                .stream = thread_stream::reported(a.service_now().stream)});
}

}  // namespace stillmap
