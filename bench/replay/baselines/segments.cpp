#include "bench/replay/baselines/segments.h"

#include <algorithm>
#include <bit>

#include "bench/replay/internal/failure.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::replay {
namespace {

using namespace stillmap::literals;

constexpr std::size_t unit = 512;
constexpr std::size_t small_most = 1_MiB;  // larger requests are of the other kind
constexpr std::size_t small_segment = 2_MiB;
constexpr std::size_t middle_most = 10_MiB;  // below, requests share segments of:
constexpr std::size_t middle_segment = 20_MiB;
constexpr std::size_t large_step = 2_MiB;

std::size_t segment_for(std::size_t size, bool small) {
  if (small) return small_segment;
  return size < middle_most ? middle_segment : round_up(size, large_step);
}

// Whether the block is a whole segment.
bool is_segment(const segment_block *b) {
  return b->before == nullptr && b->after == nullptr;
}

}  // namespace

segments::segments(const device &d, const target_options &o, bool expanding)
    : device_(d),
      drv_(d.driver()),
      expanding_(expanding),
      max_split_size_(o.max_split_size != 0 ? o.max_split_size : SIZE_MAX),
      divisions_(o.roundup_power2_divisions),
      held_(o.limit) {}

segments::~segments() {
  report_if_failed(take_passed_events(true));
  report_if_failed(drv_.synchronize_context());
  for (const event_handle e : spare_events_) report_if_failed(drv_.destroy_event(e));
  drop_expanding_segments();
  for (const segment_block &b : storage_) {
    // A segment is known by its first block.
    if (b.size != 0 && b.before == nullptr && b.of == nullptr) {
      report_if_failed(drv_.free(device_address(b.at)));
    }
  }
}

segment_block *segments::new_block() {
  if (spare_.empty()) return &storage_.emplace_back();
  segment_block *const b = spare_.back();
  spare_.pop_back();
  return b;
}

void segments::recycle(segment_block *b) {
  *b = {};
  spare_.push_back(b);
}

result<void *> segments::allocate(std::size_t bytes, stream_ref on) {
  if (!events_.empty()) STILLMAP_RETURN_IF_ERROR(take_passed_events(false));
  const std::size_t size = rounded(bytes);
  const bool small = size <= small_most;
  segment_block *b = best_fit(size, on.get(), small);
  if (b == nullptr) {
    auto made = more(size, on.get(), small);
    if (!made && made.error().is(errc::out_of_memory)) {
      STILLMAP_ASSIGN_OR_RETURN(const bool released, release_oversized(size, on.get()));
      if (released) made = more(size, on.get(), small);
    }
    if (!made && made.error().is(errc::out_of_memory)) {
      STILLMAP_RETURN_IF_ERROR(release_cached());
      ++retries_;
      made = more(size, on.get(), small);
    }
    STILLMAP_RETURN_IF_ERROR(made);
    b = *made;
  }
  free_of(*b).erase(b);
  if (splits(*b, size)) split(b, size);
  b->free = false;
  given_.emplace(b->at, b);
  return device_address(b->at).pointer();
}

status segments::free(void *at) {
  const auto found = given_.find(reinterpret_cast<std::uintptr_t>(at));
  if (found == given_.end()) {
    const operation_scope scope("segments::free");
    return make_error(errc::invalid_argument, "no such block");
  }
  segment_block *const b = found->second;
  given_.erase(found);
  for (const stream_handle s : b->uses) {
    if (spare_events_.empty()) {
      STILLMAP_ASSIGN_OR_RETURN(const event_handle made, drv_.create_event());
      spare_events_.push_back(made);
    }
    STILLMAP_RETURN_IF_ERROR(drv_.record_event(spare_events_.back(), s));
    events_[s].push_back({spare_events_.back(), b});
    spare_events_.pop_back();
    ++b->waiting;
  }
  b->uses.clear();
  if (b->waiting == 0) put_back(b);
  return {};
}

status segments::record_use(void *at, stream_ref on) {
  const auto found = given_.find(reinterpret_cast<std::uintptr_t>(at));
  if (found == given_.end()) {
    const operation_scope scope("segments::record_use");
    return make_error(errc::invalid_argument, "no such block");
  }
  std::vector<stream_handle> &uses = found->second->uses;
  if (on.get() != found->second->on &&
      std::find(uses.begin(), uses.end(), on.get()) == uses.end()) {
    uses.push_back(on.get());
  }
  return {};
}

// Events that have passed: on each stream in the order in which they were recorded, until one has
// not.
status segments::take_passed_events(bool wait) {
  for (auto of = events_.begin(); of != events_.end();) {
    std::deque<waiting_event> &queue = of->second;
    while (!queue.empty()) {
      const waiting_event first = queue.front();
      if (wait) {
        STILLMAP_RETURN_IF_ERROR(drv_.synchronize_event(first.event));
      } else {
        STILLMAP_ASSIGN_OR_RETURN(const bool done, drv_.event_done(first.event));
        if (!done) break;
      }
      queue.pop_front();
      spare_events_.push_back(first.event);
      if (--first.block->waiting == 0) put_back(first.block);
    }
    of = queue.empty() ? events_.erase(of) : std::next(of);
  }
  return {};
}

std::size_t segments::rounded(std::size_t bytes) const {
  if (divisions_ > 1 && bytes > unit * divisions_) {
    return round_up(bytes, std::bit_floor(bytes) / divisions_);
  }
  return round_up(bytes, unit);
}

// A large block keeps a rest that is too small for large requests.
bool segments::splits(const segment_block &b, std::size_t size) const {
  const std::size_t rest = b.size - size;
  if (b.small || expanding_) return rest >= unit;
  return size < max_split_size_ && rest > small_most;
}

segment_block *segments::best_fit(std::size_t size, stream_handle on, bool small) {
  segment_block wanted;
  wanted.size = size;
  wanted.on = on;
  free_set &from = free_[small ? 0 : 1];
  auto at = from.lower_bound(&wanted);
  if (at == from.end() || (*at)->on != on) return nullptr;
  if (!expanding_) {
    if (size < max_split_size_ ? (*at)->size >= max_split_size_
                               : (*at)->size >= size + middle_segment) {
      return nullptr;
    }
    return *at;
  }
  // A block at a segment's growing end counts with all that it could grow to, so that it is used
  // last.
  const auto reach = [](const segment_block *b) {
    return b->size + (b->after != nullptr && !b->after->mapped ? b->after->size : 0);
  };
  segment_block *best = *at;
  while (++at != from.end() && (*at)->on == on && reach(*at) < reach(best)) best = *at;
  return best;
}

// Cuts a block after its first `size` bytes; the rest is free.
void segments::split(segment_block *b, std::size_t size) {
  segment_block *const rest = new_block();
  rest->at = b->at + size;
  rest->size = b->size - size;
  rest->on = b->on;
  rest->small = b->small;
  rest->mapped = b->mapped;
  rest->of = b->of;
  rest->before = b;
  rest->after = b->after;
  if (rest->after != nullptr) rest->after->before = rest;
  b->after = rest;
  b->size = size;
  if (rest->mapped) {
    free_of(*rest).insert(rest);
  } else {
    unmapped_[rest->small ? 0 : 1].insert(rest);
  }
}

// Two neighbours that are in no set become one.
segment_block *segments::join(segment_block *left, segment_block *right) {
  left->size += right->size;
  left->after = right->after;
  if (left->after != nullptr) left->after->before = left;
  recycle(right);
  return left;
}

// Joins a block with its free neighbours and puts it into the free set. Returns the joined block.
segment_block *segments::put_back(segment_block *b) {
  b->free = true;
  free_set &into = free_of(*b);
  const auto joins = [](const segment_block *n) {
    return n != nullptr && n->free && n->mapped && n->waiting == 0;
  };
  if (joins(b->after)) {
    into.erase(b->after);
    join(b, b->after);
  }
  if (joins(b->before)) {
    into.erase(b->before);
    b = join(b->before, b);
  }
  into.insert(b);
  return b;
}

result<segment_block *> segments::more(std::size_t size, stream_handle on, bool small) {
  return expanding_ ? expand(size, on, small) : new_segment(size, on, small);
}

// A block of a whole new segment, in the free set.
result<segment_block *> segments::new_segment(std::size_t size, stream_handle on, bool small) {
  const std::size_t bytes = segment_for(size, small);
  if (!held_.fits(bytes)) {
    const operation_scope scope("segments");
    return make_error(errc::out_of_memory, "the limit is reached", bytes,
                      held_.limit() - held_.now());
  }
  STILLMAP_ASSIGN_OR_RETURN(const device_address at, drv_.allocate(bytes));
  held_.add(bytes);
  segment_block *const b = new_block();
  b->at = at.value();
  b->size = bytes;
  b->on = on;
  b->small = small;
  free_of(*b).insert(b);
  return b;
}

status segments::release_segment(segment_block *b) {
  STILLMAP_RETURN_IF_ERROR(drv_.free(device_address(b->at)));
  held_.drop(b->size);
  free_of(*b).erase(b);
  recycle(b);
  return {};
}

// Releases free blocks that are larger than max_split_size: the smallest that makes room for the
// request, or the largest ones together. False: they do not suffice.
result<bool> segments::release_oversized(std::size_t size, stream_handle on) {
  if (max_split_size_ == SIZE_MAX || expanding_) return false;
  segment_block wanted;
  wanted.size = std::max(size, max_split_size_);
  wanted.on = on;
  free_set &large = free_[1];
  std::vector<segment_block *> found;
  std::size_t sum = 0;
  if (const auto at = large.lower_bound(&wanted); at != large.end() && (*at)->on == on) {
    found.push_back(*at);
    sum = (*at)->size;
  } else {
    for (auto it = at; it != large.begin() && sum < wanted.size;) {
      segment_block *const b = *--it;
      if (b->on != on || b->size < max_split_size_) break;
      found.push_back(b);
      sum += b->size;
    }
  }
  if (sum < wanted.size || !std::all_of(found.begin(), found.end(), is_segment)) return false;
  STILLMAP_RETURN_IF_ERROR(drv_.synchronize_context());
  for (segment_block *const b : found) STILLMAP_RETURN_IF_ERROR(release_segment(b));
  return true;
}

// Releases completely free segments, after all work.
status segments::release_cached() {
  STILLMAP_RETURN_IF_ERROR(take_passed_events(true));
  if (!expanding_) STILLMAP_RETURN_IF_ERROR(drv_.synchronize_context());
  for (free_set &set : free_) {
    const std::vector<segment_block *> all(set.begin(), set.end());
    for (segment_block *const b : all) {
      if (expanding_) {
        STILLMAP_RETURN_IF_ERROR(release_pages_of(b));
      } else if (is_segment(b)) {
        STILLMAP_RETURN_IF_ERROR(release_segment(b));
      }
    }
  }
  return {};
}

// An estimate: a node of a set has three pointers and a colour beside its value, one of a hash table
// a pointer and its bucket.
std::optional<std::uint64_t> segments::host_bytes() const {
  constexpr std::size_t set_node = 5 * sizeof(void *), hash_node = 5 * sizeof(void *);
  std::size_t chunks = 0;
  for (const auto &s : growing_) chunks += s->chunks.size();
  return storage_.size() * sizeof(segment_block) +
         (free_[0].size() + free_[1].size() + unmapped_[0].size() + unmapped_[1].size()) *
             set_node +
         given_.size() * hash_node + chunks * (set_node + 2 * sizeof(void *));
}

result<std::unique_ptr<replay_target>> make_segments(const device &d, const target_options &o) {
  return std::make_unique<segments>(d, o, false);
}

result<std::unique_ptr<replay_target>> make_expanding_segments(const device &d,
                                                               const target_options &o) {
  if (!d.capabilities().vmm) {
    return fail(errc::not_supported,
                "this device has no virtual memory management: segments cannot expand");
  }
  return std::make_unique<segments>(d, o, true);
}

}  // namespace stillmap::replay
