// Writes the pickle that PyTorch's memory viewer reads. The viewer replays the events backwards
// from the final segments, and expects the page of each event to be in a segment at that point.
// Therefore each contiguous range with memory is a segment, and a page that moved leaves one for
// another.
#include <algorithm>
#include <unordered_map>

#include "stillmap/allocators/report/heap_report.h"
#include "stillmap/allocators/report/internal/pickle_writer.h"
#include "stillmap/allocators/report/internal/text_out.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

class torch_writer {
 public:
  explicit torch_writer(const heap_snapshot &s) : s_(s) {
    for (const history_event &e : s.history.events) {
      // The newest event of an address is that of its current block.
      if (e.action == history_action::allocate) made_[e.address] = &e;
    }
  }
  std::string write();

 private:
  using segments = std::vector<heap_extent>;
  void segment(const heap_map::arena &a, segments::const_iterator from,
               segments::const_iterator to);
  void block(const heap_extent &b);
  void frames(const history_event *e);
  void frame(const void *at);
  void event(const char *action, std::uint64_t address, std::size_t bytes, const history_event &e);
  void events(const history_event &e);

  const heap_snapshot &s_;
  pickle_writer out_;
  std::unordered_map<std::uint64_t, const history_event *> made_;
  std::unordered_map<const void *, std::uint32_t> named_;
};

const char *state_of(heap_part part) {
  if (part == heap_part::live) return "active_allocated";
  return part == heap_part::pending_free ? "active_pending_free" : "inactive";
}

void torch_writer::frame(const void *at) {
  if (const auto known = named_.find(at); known != named_.end()) {
    out_.again(known->second);
    return;
  }
  const stack_frame f = describe_frame(at);
  std::string name = f.function.empty() ? "?" : f.function;
  name += " + " + std::to_string(f.offset);
  out_.begin_dict().add("name").add(name).add("filename").add(f.module);
  out_.add("line").add(std::uint64_t{0}).end_dict();
  named_.emplace(at, out_.remember());
}

void torch_writer::frames(const history_event *e) {
  out_.add("frames").begin_list();
  if (e != nullptr) {
    for (const void *at : s_.history.stack_of(*e)) {
      frame(at);
      out_.next();
    }
  }
  out_.end_list();
}

void torch_writer::block(const heap_extent &b) {
  const std::uint64_t at = b.range.begin.value();
  const bool free = b.part == heap_part::free || b.part == heap_part::cached;
  out_.begin_dict().add("address").add(at).add("size").add(std::uint64_t{b.range.bytes});
  // The viewer counts requested_size also for free blocks.
  out_.add("requested_size");
  out_.add(std::uint64_t{b.part == heap_part::live ? b.requested : free ? 0 : b.range.bytes});
  out_.add("state").add(state_of(b.part));
  const auto made = made_.find(at);
  frames(made != made_.end() && !free ? made->second : nullptr);
  out_.end_dict();
}

void torch_writer::segment(const heap_map::arena &a, segments::const_iterator from,
                           segments::const_iterator to) {
  std::uint64_t total = 0, live = 0, active = 0, requested = 0;
  for (auto s = from; s != to; ++s) {
    total += s->range.bytes;
    if (s->part == heap_part::live) live += s->range.bytes;
    if (s->part == heap_part::live || s->part == heap_part::pending_free) active += s->range.bytes;
    requested += s->requested;
  }
  out_.begin_dict().add("device").add(static_cast<std::uint64_t>(s_.ordinal));
  out_.add("address").add(from->range.begin.value()).add("total_size").add(total);
  out_.add("allocated_size").add(live).add("active_size").add(active);
  out_.add("requested_size").add(requested).add("stream").add(text::handle_of(a.stream));
  out_.add("segment_type").add("large").add("segment_pool_id").add_pair(0, a.pool);
  out_.add("is_expandable").add(s_.map.page_bytes != 0);
  frames(nullptr);
  out_.add("blocks").begin_list();
  while (from != to) {
    // The viewer shows contiguous free memory as one block, so cached and free are merged.
    heap_extent b = *from++;
    if (state_of(b.part) == state_of(heap_part::free)) {
      while (from != to && state_of(from->part) == state_of(heap_part::free)) {
        b.range.bytes += from++->range.bytes;
      }
    }
    block(b);
    out_.next();
  }
  out_.end_list().end_dict();
}

void torch_writer::event(const char *action, std::uint64_t address, std::size_t bytes,
                         const history_event &e) {
  const bool oom = e.action == history_action::out_of_memory;
  out_.begin_dict().add("action").add(action).add(oom ? "device_free" : "addr");
  out_.add(oom ? std::uint64_t{e.available} : address).add("size").add(std::uint64_t{bytes});
  out_.add("stream").add(text::handle_of(e.stream)).add("time_us").add(e.time_ns / 1000);
  frames(&e);
  out_.end_dict().next();
}

// The viewer shows no reservations.
void torch_writer::events(const history_event &e) {
  switch (e.action) {
    case history_action::page_move:
      event("segment_unmap", e.from, e.bytes, e);
      [[fallthrough]];
    case history_action::page_map:
      return event("segment_map", e.address, e.bytes, e);
    case history_action::page_unmap:
      return event("segment_unmap", e.address, e.bytes, e);
    case history_action::allocate:
      return event("alloc", e.address, e.bytes, e);
    case history_action::free_requested:
    case history_action::free_completed:
      return event(name_of(e.action), e.address, e.bytes, e);
    case history_action::out_of_memory:
      return event("oom", 0, e.bytes, e);
    case history_action::snapshot:
      return event("snapshot", 0, 0, e);
    case history_action::reserve:
      break;
  }
}

std::string torch_writer::write() {
  out_.begin_dict().add("segments").begin_list();
  for (const heap_map::arena &a : s_.map.arenas) {
    for (auto from = a.extents.begin(); from != a.extents.end();) {
      auto to = from + 1;
      if (has_memory(from->part)) {
        const auto is_reserved_at = [&](device_address at) {
          return std::any_of(a.reserved.begin(), a.reserved.end(),
                             [&](const virtual_range &r) { return r.begin == at; });
        };
        while (to != a.extents.end() && has_memory(to->part) &&
               to->range.begin == (to - 1)->range.end() && !is_reserved_at(to->range.begin)) {
          ++to;
        }
        segment(a, from, to);
        out_.next();
      }
      from = to;
    }
  }
  out_.end_list().add("device_traces").begin_list();
  // One list for each device up to this one; those of other devices are empty.
  for (int device = 0; device <= s_.ordinal; ++device) {
    out_.begin_list();
    if (device == s_.ordinal) {
      for (const history_event &e : s_.history.events) events(e);
    }
    out_.end_list().next();
  }
  out_.end_list();
  out_.add("allocator_settings").begin_dict().add("backend").add("stillmap");
  out_.add("expandable_segments").add(s_.map.page_bytes != 0).end_dict();
  return out_.end_dict().take();
}

}  // namespace

result<heap_snapshot> snapshot_of(const caching_allocator &heap) {
  return with_host_memory("snapshot_of", [&]() -> result<heap_snapshot> {
    heap_snapshot out;
    out.device = heap.device().name();
    out.ordinal = heap.device().ordinal();
    STILLMAP_ASSIGN_OR_RETURN(out.history, heap.history());
    STILLMAP_ASSIGN_OR_RETURN(out.map, heap.map());
    out.stats = heap.stats();
    return out;
  });
}

result<std::string> to_torch_pickle(const heap_snapshot &s) {
  return with_host_memory("to_torch_pickle",
                          [&]() -> result<std::string> { return torch_writer(s).write(); });
}

}  // namespace stillmap
