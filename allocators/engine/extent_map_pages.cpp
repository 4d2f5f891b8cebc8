// Pages that leave free memory: taken for other addresses, or aliased.
#include <algorithm>
#include <utility>

#include "stillmap/allocators/engine/extent_map.h"
#include "stillmap/allocators/engine/room.h"

namespace stillmap {

// ---- taking pages ----

std::size_t extent_map::take_pages(std::size_t pages, std::vector<extent *> &out) {
  if (free_pages() == 0) return 0;
  std::vector<extent *> whole;
  for (const index &free : free_index_) {
    free.each_from(page_, [&](extent &s) {
      if (whole_pages(s) != 0) whole.push_back(&s);
      return true;
    });
  }
  std::sort(whole.begin(), whole.end(), [](const extent *a, const extent *b) {
    return a->zone != b->zone ? a->zone < b->zone : a->begin < b->begin;
  });
  // From the upper end, so that the rest stays contiguous with the memory below.
  const auto part_of = [&](const extent &s, std::size_t most) {
    const std::uint64_t to = floor(s.end()), n = std::min(most, whole_pages(s));
    return std::pair(to - n * page_, to);
  };
  std::size_t extents = 0, splits = 0;
  for (std::size_t left = pages; extents < whole.size() && left != 0; ++extents) {
    const extent &s = *whole[extents];
    const auto [from, to] = part_of(s, left);
    splits += (from > s.begin ? 1 : 0) + (to < s.end() ? 1 : 0);
    left -= static_cast<std::size_t>((to - from) >> page_bits_);
  }
  whole.resize(extents);
  make_room(out, extents);
  reserve_splits(splits);
  std::size_t got = 0;
  for (extent *s : whole) {
    const auto [from, to] = part_of(*s, pages - got);
    const auto n = static_cast<std::size_t>((to - from) >> page_bits_);
    remove_from_index(s);
    if (to < s->end()) add_to_index(split(s, to));
    if (from > s->begin) {
      extent *const rest = split(s, from);
      add_to_index(s);
      s = rest;
    }
    s->state = extent_state::unmapping;
    rekey_neighbours(*s);
    committed_ -= n * page_;
    got += n;
    out.push_back(s);
  }
  return got;
}

extent *extent_map::set_aside(virtual_range free, extent *hint) {
  extent *s = at(free.begin.value(), hint);
  const std::uint64_t begin = free.begin.value(), end = free.end().value();
  remove_from_index(s);
  if (end < s->end()) add_to_index(split(s, end));
  if (begin > s->begin) {
    extent *const part = split(s, begin);
    add_to_index(s);
    s = part;
  }
  s->state = extent_state::unmapping;
  rekey_neighbours(*s);
  committed_ -= s->bytes;
  return s;
}

void extent_map::put_back(extent *unmapping) {
  committed_ += unmapping->bytes;
  set_state(unmapping, extent_state::free);
}

void extent_map::unmapped(extent *unmapping) {
  set_state(unmapping, extent_state::uncommitted);
}

// ---- aliases ----

void extent_map::add_alias(extent *unmapping, std::uint64_t to, extent_map &there) {
  for (std::uint64_t at = unmapping->begin; at < unmapping->end(); at += page_, to += page_) {
    pages_.share(at, to, there.pages_);
  }
  aliased_ += unmapping->bytes;
  set_state(unmapping, extent_state::aliased);
}

void extent_map::move_away(const extent &unmapping, std::uint64_t to, extent_map &there) {
  for (std::uint64_t at = unmapping.begin; at < unmapping.end(); at += page_, to += page_) {
    pages_.move(at, to, there.pages_);
  }
}

void extent_map::leave(const extent &unmapping) {
  for (std::uint64_t at = unmapping.begin; at < unmapping.end(); at += page_) pages_.unshare(at);
}

extent_map::run extent_map::next_run(std::uint64_t alias, std::size_t n, std::uint64_t visit,
                                     const extent_map &there) {
  shared_page *const *const pages = pages_.shared_from(alias);
  run r{pages[0]->owner.load(std::memory_order_relaxed), 0};
  const std::uint64_t end = there.pages_.end_of_reservation(r.owner);
  n = std::min(n, static_cast<std::size_t>((end - r.owner) >> page_bits_));
  for (std::uint64_t next = r.owner; r.pages < n; ++r.pages, next += page_) {
    shared_page &page = *pages[r.pages];
    if (page.owner.load(std::memory_order_relaxed) != next || page.visited_by == visit) break;
    page.visited_by = visit;
  }
  return r;
}

extent *extent_map::recall(std::uint64_t alias, std::size_t n, extent *alias_hint,
                           extent *owner_hint) {
  reserve_splits(4);
  const virtual_range used{device_address(owner_of(alias)), n * page_};
  return recall_from(*this, set_aside(used, owner_hint), alias, alias_hint);
}

extent *extent_map::recall_from(extent_map &there, extent *unmapping, std::uint64_t alias,
                                extent *alias_hint) {
  const std::uint64_t bytes = unmapping->bytes;
  there.aliased_ += bytes;
  there.set_state(unmapping, extent_state::aliased);
  extent *s = at(alias, alias_hint);
  if (alias + bytes < s->end()) split(s, alias + bytes);
  if (alias > s->begin) s = split(s, alias);
  aliased_ -= bytes;
  committed_ += bytes;
  shared_page *const *const pages = pages_.shared_from(alias);
  for (std::size_t i = 0; i < bytes >> page_bits_; ++i) {
    pages[i]->owner.store(alias + i * page_, std::memory_order_relaxed);
  }
  return set_state(s, extent_state::free);
}

bool extent_map::has_aliases_of(const extent_map &other) const {
  bool any = false;
  if (aliased_ == 0) return false;
  each([&](const extent &s) {
    if (s.state != extent_state::aliased) return;
    for (std::uint64_t at = s.begin; at < s.end() && !any; at += page_) {
      any = other.contains(owner_of(at));
    }
  });
  return any;
}

void extent_map::drop_aliases(std::vector<extent *> &out) {
  std::size_t aliased = 0;
  each([&](const extent &s) { aliased += s.state == extent_state::aliased ? 1 : 0; });
  make_room(out, aliased);
  for (extent *first : first_extents_) {
    for (extent *s = first; s != nullptr; s = s->next) {
      if (s->state != extent_state::aliased) continue;
      leave(*s);
      s->state = extent_state::unmapping;
      out.push_back(s);
    }
  }
  aliased_ = 0;
}

}  // namespace stillmap
