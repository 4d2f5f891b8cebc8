#include "stillmap/allocators/engine/extent_map.h"

#include <algorithm>

#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/engine/room.h"

namespace stillmap {
namespace {

std::uint64_t align_up(std::uint64_t at, std::uint64_t alignment) {
  return (at + alignment - 1) & ~(alignment - 1);
}

}  // namespace

// ---- splitting and merging ----

// The size of the largest block that could begin or end in this uncommitted extent: its own size
// and that of its free neighbours.
std::uint64_t extent_map::key(const extent &uncommitted) const {
  std::uint64_t bytes = uncommitted.bytes;
  if (is(uncommitted.previous, extent_state::free)) bytes += uncommitted.previous->bytes;
  if (is(uncommitted.next, extent_state::free)) bytes += uncommitted.next->bytes;
  return bytes;
}

// Splits `s`, which is in no index, at `at`. Returns the second part, in the same state.
extent *extent_map::split(extent *s, std::uint64_t at) {
  extent *const rest = store_.create();
  rest->begin = at;
  rest->bytes = s->end() - at;
  rest->state = s->state;
  rest->zone = s->zone;
  rest->in = s->in;
  rest->previous = s;
  rest->next = s->next;
  if (s->next != nullptr) s->next->previous = rest;
  s->next = rest;
  s->bytes = at - s->begin;
  pages_.extent_began(rest);
  return rest;
}

void extent_map::merge_next(extent *s) {
  extent *const other = s->next;
  pages_.extent_ended(other);
  s->bytes += other->bytes;
  s->next = other->next;
  if (other->next != nullptr) other->next->previous = s;
  store_.destroy(other);
}

void extent_map::add_to_index(extent *s) {
  if (s->state == extent_state::free) {
    free_index_[number(s->zone)].insert_unsorted(*s);
    free_ += s->bytes;
    rekey_neighbours(*s);
  } else if (s->state == extent_state::uncommitted) {
    add_uncommitted(*s);
  }
}

void extent_map::add_uncommitted(extent &s) {
  uncommitted_index_[number(s.zone)].insert(s, key(s));
}

void extent_map::remove_from_index(extent *s) {
  if (!s->by_size.in) return;
  index &free = free_index_[number(s->zone)];
  if (s->state != extent_state::free || free.is_sorted(*s)) return remove_sorted(*s);
  free_ -= s->bytes;
  free.remove_unsorted(*s);
}

void extent_map::remove_sorted(extent &s) {
  if (s.state == extent_state::free) {
    free_index_[number(s.zone)].remove(s);
    free_ -= s.bytes;
    whole_pages_ -= whole_pages(s);
  } else {
    uncommitted_index_[number(s.zone)].remove(s);
  }
}

void extent_map::rekey_uncommitted_neighbours(extent &s) {
  for (extent *const near : {s.previous, s.next}) {
    if (!is(near, extent_state::uncommitted) || !near->by_size.in) continue;
    uncommitted_index_[number(near->zone)].remove(*near);
    uncommitted_index_[number(near->zone)].insert(*near, key(*near));
  }
}

// Memory that becomes free is not sorted at once: most of what a loop frees is used again before
// anything is searched.
void extent_map::sort_free(address_zone zone) {
  free_index_[number(zone)].sort([&](const extent &s) {
    whole_pages_ += whole_pages(s);
    return s.bytes;
  });
}

std::size_t extent_map::free_pages() {
  sort_free(address_zone::large);
  sort_free(address_zone::small);
  return whole_pages_;
}

std::size_t extent_map::free_pages() const {
  std::size_t sum = whole_pages_;
  for (const index &free : free_index_) {
    free.each_unsorted([&](const extent &s) { sum += whole_pages(s); });
  }
  return sum;
}

// Sets the state of `s`, which is in no index, merges it with equal neighbours and indexes it.
// Returns the extent that it is part of now.
extent *extent_map::set_state(extent *s, extent_state state) {
  s->state = state;
  if (state != extent_state::live && state != extent_state::unmapping) {
    if (is(s->next, state)) {
      remove_from_index(s->next);
      merge_next(s);
    }
    if (is(s->previous, state)) {
      s = s->previous;
      remove_from_index(s);
      merge_next(s);
    }
    add_to_index(s);
  }
  rekey_neighbours(*s);
  return s;
}

void extent_map::add(virtual_range range, bool committed, address_zone zone) {
  reserve_splits(1);
  make_room(first_extents_);
  reservation_pages *const in = pages_.add(range);
  extent *const s = store_.create();
  s->in = in;
  s->begin = range.begin.value();
  s->bytes = range.bytes;
  s->zone = zone;
  first_extents_.push_back(s);
  pages_.extent_began(s);
  reserved_[number(zone)] += range.bytes;
  if (committed) committed_ += range.bytes;
  set_state(s, committed ? extent_state::free : extent_state::uncommitted);
}

bool extent_map::remove(virtual_range range) {
  const auto it = std::find_if(first_extents_.begin(), first_extents_.end(),
                               [&](const extent *s) { return s->begin == range.begin.value(); });
  if (it == first_extents_.end() || (*it)->range() != range ||
      ((*it)->state != extent_state::free && (*it)->state != extent_state::uncommitted)) {
    return false;
  }
  extent *const s = *it;
  remove_from_index(s);
  if (s->state == extent_state::free) committed_ -= s->bytes;
  reserved_[number(s->zone)] -= range.bytes;
  pages_.remove(range);
  store_.destroy(s);
  first_extents_.erase(it);
  return true;
}

// ---- placing ----

// A block of whole pages begins at a page boundary: elsewhere it would break one page more.
std::uint64_t extent_map::alignment_of(std::uint64_t bytes, std::uint64_t asked) const {
  return (bytes & (page_ - 1)) == 0 ? std::max<std::uint64_t>(asked, page_) : asked;
}

// Best fit: the smallest that fits, and of these the lowest, so that long-lived blocks gather there.
// Nodes of one bin differ by at most a sixteenth, and every node of a later bin is larger.
extent *extent_map::best_fit(std::uint64_t bytes, std::uint64_t alignment,
                             address_zone zone) const {
  extent *best = nullptr;
  free_index_[number(zone)].each_from(bytes, [&](extent &s) {
    if (best != nullptr && best->by_size.bin != s.by_size.bin) return false;
    if (align_up(s.begin, alignment) + bytes > s.end()) return true;
    const bool better = best == nullptr || s.bytes < best->bytes ||
                        (s.bytes == best->bytes && s.begin < best->begin);
    if (better) best = &s;
    return true;
  });
  return best;
}

extent *extent_map::place(std::uint64_t bytes, std::uint64_t asked, address_zone zone) {
  sort_free(zone);
  std::uint64_t alignment = pages_move_ ? alignment_of(bytes, asked) : asked;
  extent *s = best_fit(bytes, alignment, zone);
  if (s == nullptr && alignment != asked) s = best_fit(bytes, alignment = asked, zone);
  if (s == nullptr) return nullptr;
  reserve_splits(2);
  const std::uint64_t at = align_up(s->begin, alignment);
  remove_from_index(s);
  if (at != s->begin) {
    extent *const block = split(s, at);
    add_to_index(s);
    s = block;
  }
  if (s->bytes != bytes) {
    extent *const rest = split(s, at + bytes);
    s->state = extent_state::live;
    add_to_index(rest);
  }
  s->state = extent_state::live;
  rekey_neighbours(*s);
  return s;
}

extent *extent_map::release(extent *live) {
  return set_state(live, extent_state::free);
}

extent *extent_map::place_at(extent *s, std::uint64_t begin, std::uint64_t bytes) {
  reserve_splits(2);
  const std::uint64_t end = begin + bytes;
  bool was_free = s->state == extent_state::free;
  if (was_free) remove_from_index(s);
  extent *left = nullptr, *right = nullptr;  // the parts outside of the range
  if (s->begin < begin) {
    left = s;
    s = split(s, begin);
    left->state = extent_state::free;
    if (!was_free && is(left->previous, extent_state::free)) {
      left = left->previous;
      remove_from_index(left);
      merge_next(left);
    }
  }
  while (s->end() < end) {
    was_free = s->next->state == extent_state::free;
    if (was_free) remove_from_index(s->next);
    merge_next(s);
  }
  if (end < s->end()) {
    right = split(s, end);
    right->state = extent_state::free;
    if (!was_free && is(right->next, extent_state::free)) {
      remove_from_index(right->next);
      merge_next(right);
    }
  }
  s->state = extent_state::live;
  if (right != nullptr) add_to_index(right);
  if (left != nullptr) add_to_index(left);
  rekey_neighbours(*s);
  return s;
}

// ---- carving ----

// The better of two positions in an uncommitted extent and its free neighbours: at the left end, or
// at the right end.
std::optional<extent_map::carved_extent> extent_map::fit(const extent &uncommitted,
                                                         std::uint64_t bytes,
                                                         std::uint64_t alignment) const {
  const bool left = is(uncommitted.previous, extent_state::free);
  const bool right = is(uncommitted.next, extent_state::free);
  const std::uint64_t low = left ? uncommitted.previous->begin : uncommitted.begin;
  const std::uint64_t high = right ? uncommitted.next->end() : uncommitted.end();
  if (high - low < bytes) return std::nullopt;
  std::optional<carved_extent> best;
  const auto consider = [&](std::uint64_t begin) {
    if (begin < low || begin > high - bytes) return;
    const std::uint64_t from = std::max(uncommitted.begin, floor(begin));
    const std::uint64_t to = std::min(uncommitted.end(), ceil(begin + bytes));
    if (to <= from) return;
    carved_extent e;
    e.begin = begin;
    e.bytes = bytes;
    e.missing = {device_address(from), static_cast<std::size_t>(to - from)};
    if (!best || e.missing.bytes < best->missing.bytes) best = e;
  };
  consider(align_up(low, alignment));
  if (right) consider((high - bytes) & ~(alignment - 1));
  return best;
}

std::optional<extent_map::carved_extent> extent_map::carve(std::uint64_t bytes, std::uint64_t asked,
                                                           search mode, address_zone zone) {
  const std::uint64_t alignment = alignment_of(bytes, asked);
  std::optional<carved_extent> best;
  extent *chosen = nullptr;
  std::size_t looks = mode == search::thorough ? SIZE_MAX : policy::max_compared_fits;
  uncommitted_index_[number(zone)].each_from(bytes, [&](extent &s) {
    const auto e = fit(s, bytes, alignment);
    if (e && (!best || e->missing.bytes < best->missing.bytes ||
              (e->missing.bytes == best->missing.bytes && e->begin < best->begin))) {
      best = e;
      chosen = &s;
    }
    return --looks != 0 || !best;
  });
  if (!best) return std::nullopt;
  reserve_splits(2);

  extent *const left = is(chosen->previous, extent_state::free) ? chosen->previous : nullptr;
  extent *const right = is(chosen->next, extent_state::free) ? chosen->next : nullptr;
  const std::uint64_t from = std::min(best->begin, best->missing.begin.value());
  const std::uint64_t to = std::max(best->begin + bytes, best->missing.end().value());
  remove_from_index(chosen);
  extent *node = chosen, *before = nullptr, *last = chosen;
  if (from > chosen->begin) {
    before = chosen;
    node = last = split(chosen, from);
  } else if (from < chosen->begin) {
    remove_from_index(left);
    node = from > left->begin ? split(left, from) : left;
    if (node != left) add_to_index(left);
  }
  if (to < last->end()) {
    add_to_index(split(last, to));
  } else if (to > last->end()) {
    remove_from_index(right);
    if (to < right->end()) add_to_index(split(right, to));
    last = right;
  }
  while (node->end() < to) merge_next(node);
  node->state = extent_state::live;
  if (before != nullptr) add_to_index(before);
  rekey_neighbours(*node);
  best->node = node;
  return best;
}

extent *extent_map::commit(const carved_extent &e) {
  extent *s = e.node;
  committed_ += e.missing.bytes;
  if (e.begin > s->begin) {
    extent *const block = split(s, e.begin);
    set_state(s, extent_state::free);
    s = block;
  }
  if (e.begin + e.bytes < s->end()) set_state(split(s, e.begin + e.bytes), extent_state::free);
  return s;
}

void extent_map::abandon(const carved_extent &e) {
  extent *s = e.node;
  if (e.missing.begin.value() > s->begin) {
    extent *const middle = split(s, e.missing.begin.value());
    set_state(s, extent_state::free);
    s = middle;
  }
  if (e.missing.end().value() < s->end()) {
    set_state(split(s, e.missing.end().value()), extent_state::free);
  }
  set_state(s, extent_state::uncommitted);
}

}  // namespace stillmap
