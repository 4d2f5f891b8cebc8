#include "stillmap/allocators/engine/extent_map.h"

#include <algorithm>

#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/internal/room.h"

namespace stillmap {
namespace {

std::uint64_t align_up(std::uint64_t at, std::uint64_t alignment) {
  return (at + alignment - 1) & ~(alignment - 1);
}

}  // namespace

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
  reserve_splits(splits_of_recall);
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

// ---- invariants ----

std::string extent_map::find_inconsistency(bool growing) const {
  std::size_t committed = 0, free = 0, pages = 0, reserved = 0, aliased = 0;
  for (const extent *first : first_extents_) {
    if (first->previous != nullptr) return "a first extent has one before it";
    for (const extent *s = first; s != nullptr; s = s->next) {
      if (s->bytes == 0) return "an empty extent";
      reserved += s->bytes;
      if (s->next != nullptr) {
        if (s->next->previous != s) return "neighbours that do not know each other";
        if (s->next->begin != s->end()) return "a gap or an overlap";
        if (s->next->zone != s->zone) return "a reservation with two zones";
        if (s->next->state == s->state && s->state != extent_state::live &&
            s->state != extent_state::unmapping) {
          return "two neighbours that should be one";
        }
      }
      const bool indexed =
          s->state == extent_state::free || s->state == extent_state::uncommitted || s->cached;
      if (s->by_size.in != indexed) return "in the wrong index";
      if (s->state == extent_state::uncommitted || s->state == extent_state::unmapping ||
          s->state == extent_state::aliased) {
        if (s->begin % page_ != 0 || s->bytes % page_ != 0) return "part of a page without backing";
      } else {
        committed += s->bytes;
      }
      if (s->state == extent_state::free) {
        free += s->bytes;
        pages += whole_pages(*s);
      }
      if (s->state == extent_state::aliased) {
        aliased += s->bytes;
        for (std::uint64_t at = s->begin; at < s->end(); at += page_) {
          const shared_page *const page = *pages_.shared_from(at);
          if (page == nullptr) return "an aliased page that is mapped nowhere else";
          const std::uint64_t owner = owner_of(at);
          if (!contains(owner)) continue;
          if (*pages_.shared_from(owner) != page) {
            return "an aliased page that is not mapped at its owner's address";
          }
          const extent_state there = pages_.at(owner)->state;
          if (there != extent_state::free && there != extent_state::live) {
            return "an aliased page whose owner is not committed";
          }
        }
      }
      for (std::uint64_t at = s->begin; at < s->end(); at = floor(at) + page_) {
        if (pages_.at(at) != s) return "an address that leads to another extent";
      }
      if (s->state == extent_state::uncommitted) {
        if (!uncommitted_index_[number(s->zone)].contains(*s, key(*s))) {
          return "an uncommitted extent under a stale key";
        }
      }
    }
  }
  if (reserved != reserved_bytes()) return "reserved bytes";
  if (free != free_) return "free bytes";
  if (aliased != aliased_) return "aliased bytes";
  if (pages != free_pages()) return "whole free pages";
  if (growing ? committed < committed_ : committed != committed_) return "committed bytes";
  return "";
}

}  // namespace stillmap
