#include "stillmap/allocators/engine/extent_set.h"

#include "stillmap/allocators/internal/room.h"

namespace stillmap {

// The size of the largest block that could begin or end in this uncommitted extent: its own size
// and that of its free neighbours.
std::uint64_t extent_set::key(const extent &uncommitted) const {
  std::uint64_t bytes = uncommitted.bytes;
  if (is(uncommitted.previous, extent_state::free)) bytes += uncommitted.previous->bytes;
  if (is(uncommitted.next, extent_state::free)) bytes += uncommitted.next->bytes;
  return bytes;
}

// Splits `s`, which is in no index, at `at`. Returns the second part, in the same state.
extent *extent_set::split(extent *s, std::uint64_t at) {
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

void extent_set::merge_next(extent *s) {
  extent *const other = s->next;
  pages_.extent_ended(other);
  s->bytes += other->bytes;
  s->next = other->next;
  if (other->next != nullptr) other->next->previous = s;
  store_.destroy(other);
}

void extent_set::add_to_index(extent *s) {
  if (s->state == extent_state::free) {
    free_index_[number(s->zone)].insert_unsorted(*s);
    free_ += s->bytes;
    rekey_neighbours(*s);
  } else if (s->state == extent_state::uncommitted) {
    add_uncommitted(*s);
  }
}

void extent_set::add_uncommitted(extent &s) {
  uncommitted_index_[number(s.zone)].insert(s, key(s));
}

void extent_set::remove_from_index(extent *s) {
  if (!s->by_size.in) return;
  index &free = free_index_[number(s->zone)];
  if (s->state != extent_state::free || free.is_sorted(*s)) return remove_sorted(*s);
  free_ -= s->bytes;
  free.remove_unsorted(*s);
}

void extent_set::remove_sorted(extent &s) {
  if (s.state == extent_state::free) {
    free_index_[number(s.zone)].remove(s);
    free_ -= s.bytes;
    whole_pages_ -= whole_pages(s);
  } else {
    uncommitted_index_[number(s.zone)].remove(s);
  }
}

void extent_set::rekey_uncommitted_neighbours(extent &s) {
  for (extent *const near : {s.previous, s.next}) {
    if (!is(near, extent_state::uncommitted) || !near->by_size.in) continue;
    uncommitted_index_[number(near->zone)].remove(*near);
    uncommitted_index_[number(near->zone)].insert(*near, key(*near));
  }
}

// Memory that becomes free is not sorted at once: most of what a loop frees is used again before
// anything is searched.
void extent_set::sort_free(address_zone zone) {
  free_index_[number(zone)].sort([&](const extent &s) {
    whole_pages_ += whole_pages(s);
    return s.bytes;
  });
}

std::size_t extent_set::free_pages() {
  sort_free(address_zone::large);
  sort_free(address_zone::small);
  return whole_pages_;
}

std::size_t extent_set::free_pages() const {
  std::size_t sum = whole_pages_;
  for (const index &free : free_index_) {
    free.each_unsorted([&](const extent &s) { sum += whole_pages(s); });
  }
  return sum;
}

// Sets the state of `s`, which is in no index, to one in which neighbours are merged. Merges and indexes it.
// Returns the extent that it is part of now.
extent *extent_set::set_state(extent *s, extent_state state) {
  s->state = state;
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
  return s;
}

void extent_set::add(virtual_range range, bool committed, address_zone zone) {
  reserve_splits(1 + 2);  // and those of a place
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

bool extent_set::remove(virtual_range range) {
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

}  // namespace stillmap
