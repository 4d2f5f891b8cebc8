#include "stillmap/allocators/internal/extent_map.h"

#include <algorithm>

namespace stillmap {
namespace {

// Places that a quick search compares: free ones, which lie in rows, and unbacked ones.
constexpr std::size_t quick_looks = 1024, quick_fits = 256;
constexpr std::uint64_t no_place = UINT64_MAX;
constexpr std::uint64_t sliver = 8 * allocation_granule;

std::uint64_t align_up(std::uint64_t at, std::uint64_t alignment) {
  return (at + alignment - 1) & ~(alignment - 1);
}

}  // namespace

// ---- the list ----

// How large a block could begin or end in this unbacked stretch, as its neighbours tell.
std::uint64_t extent_map::key(const segment &unbacked) const {
  std::uint64_t bytes = unbacked.bytes;
  if (is(unbacked.previous, segment_state::free)) bytes += unbacked.previous->bytes;
  if (is(unbacked.next, segment_state::free)) bytes += unbacked.next->bytes;
  return bytes;
}

// Cuts `s`, which is in no index, at `at`: returns the second part, of the same state.
segment *extent_map::split(segment *s, std::uint64_t at) {
  segment *const rest = store_.take();
  rest->begin = at;
  rest->bytes = s->end() - at;
  rest->state = s->state;
  rest->previous = s;
  rest->next = s->next;
  if (s->next != nullptr) s->next->previous = rest;
  s->next = rest;
  s->bytes = at - s->begin;
  pages_.began(rest);
  return rest;
}

void extent_map::swallow_next(segment *s) {
  segment *const other = s->next;
  pages_.ended(other);
  s->bytes += other->bytes;
  s->next = other->next;
  if (other->next != nullptr) other->next->previous = s;
  store_.give_back(other);
}

void extent_map::enter(segment *s) {
  if (s->state == segment_state::free) {
    free_rows_.insert(*s);
    free_ += s->bytes;
    whole_pages_ += whole_pages(*s);
    rekey(s->previous);
    rekey(s->next);
  } else if (s->state == segment_state::unbacked) {
    unbacked_index_.insert(*s, key(*s));
  }
}

void extent_map::lift(segment *s) {
  if (!s->by_size.in) return;
  if (s->state == segment_state::free) {
    free_rows_.remove(*s);
    free_ -= s->bytes;
    whole_pages_ -= whole_pages(*s);
  } else {
    unbacked_index_.remove(*s);
  }
}

void extent_map::rekey(segment *s) {
  if (!is(s, segment_state::unbacked) || !s->by_size.in) return;
  unbacked_index_.remove(*s);
  unbacked_index_.insert(*s, key(*s));
}

// Gives `s`, which is in no index, its state, merges it with neighbours of the same and enters it.
// Returns what it is part of now.
segment *extent_map::settle(segment *s, segment_state state) {
  s->state = state;
  if (state != segment_state::live && state != segment_state::leaving) {
    if (is(s->next, state)) {
      lift(s->next);
      swallow_next(s);
    }
    if (is(s->previous, state)) {
      s = s->previous;
      lift(s);
      swallow_next(s);
    }
    enter(s);
  }
  rekey(s->previous);
  rekey(s->next);
  return s;
}

void extent_map::add(virtual_range range, bool backed) {
  segment *const s = store_.take();
  s->begin = range.begin.value();
  s->bytes = range.bytes;
  firsts_.push_back(s);
  pages_.add(range);
  pages_.began(s);
  reserved_ += range.bytes;
  if (backed) backed_ += range.bytes;
  settle(s, backed ? segment_state::free : segment_state::unbacked);
}

bool extent_map::remove(virtual_range range) {
  const auto it = std::find_if(firsts_.begin(), firsts_.end(),
                               [&](const segment *s) { return s->begin == range.begin.value(); });
  if (it == firsts_.end() || (*it)->range() != range ||
      ((*it)->state != segment_state::free && (*it)->state != segment_state::unbacked)) {
    return false;
  }
  segment *const s = *it;
  lift(s);
  if (s->state == segment_state::free) backed_ -= s->bytes;
  reserved_ -= range.bytes;
  pages_.remove(range);
  store_.give_back(s);
  firsts_.erase(it);
  return true;
}

// ---- placing ----

// A block of whole pages begins at a page: elsewhere it would keep one page more from being whole.
std::uint64_t extent_map::alignment_of(std::uint64_t bytes, std::uint64_t asked) const {
  return (bytes & (page_ - 1)) == 0 ? std::max<std::uint64_t>(asked, page_) : asked;
}

// An exact fit; or one that leaves a sliver, and breaks no whole page; or else where fewest are
// broken. Of equals the lowest address, so that what lives long gathers there. All of it is one
// number, which has to be low: whole pages above the address.
segment *extent_map::best_place(std::uint64_t bytes, std::uint64_t alignment, search how) const {
  const std::uint64_t own = bytes >> page_bits_, part = bytes & (page_ - 1);
  const bool simple = alignment == allocation_granule || alignment == page_;
  const auto rank = [](std::uint64_t n, std::uint64_t begin) { return n << 60 | begin; };
  // The page of the block's last part is one more, unless as much precedes its first whole page.
  const auto touched = [&](std::uint64_t at) { return own + ((-at & (page_ - 1)) < part ? 1 : 0); };
  // No place breaks fewer pages than the block has, but for one less where too few are whole.
  const auto rank_of = [&](const free_bins::entry &e) {
    const std::uint64_t at = align_up(e.begin, alignment), end = e.begin + e.bytes;
    if (at + bytes > end) return no_place;
    if (e.bytes == bytes) return rank(0, e.begin);
    const std::uint64_t broken = simple ? std::min<std::uint64_t>(whole_pages(at, end), touched(at))
                                        : whole_pages(e.begin, end) - whole_pages(e.begin, at) -
                                              whole_pages(at + bytes, end);
    const std::uint64_t left = e.bytes - bytes;
    if (broken == 0 && left <= sliver) return rank(1, left << 43 | e.begin);
    return rank(broken + 3 - own, e.begin);
  };
  std::uint64_t best = no_place, below = no_place;
  segment *found = nullptr;
  const auto consider = [&](const free_bins::entry &e, std::uint64_t here) {
    if (here >= best) return;
    best = here;
    found = e.of;
    below = here < rank(3, 0) ? 0 : here < rank(4, 0) ? e.begin : no_place;
  };
  std::size_t looks = how == search::thorough ? SIZE_MAX : quick_looks;
  free_rows_.each_row(bytes, [&](std::span<const free_bins::entry> row, std::uint64_t least) {
    if (found != nullptr && looks < row.size()) row = row.first(looks);
    looks -= std::min(looks, row.size());
    if (simple && least >= (own + 2) << page_bits_) {
      // What it touches is whole, so that few need more than a look at their address.
      for (const free_bins::entry &e : row) {
        if (e.begin < below) consider(e, rank(touched(e.begin) + 3 - own, e.begin));
      }
    } else {
      for (const free_bins::entry &e : row) consider(e, rank_of(e));
    }
    return looks != 0 || found == nullptr;
  });
  return found;
}

segment *extent_map::place(std::uint64_t bytes, std::uint64_t asked, search how) {
  std::uint64_t alignment = alignment_of(bytes, asked);
  segment *s = best_place(bytes, alignment, how);
  if (s == nullptr && alignment != asked) s = best_place(bytes, alignment = asked, how);
  if (s == nullptr) return nullptr;
  const std::uint64_t at = align_up(s->begin, alignment);
  lift(s);
  if (at != s->begin) {
    segment *const block = split(s, at);
    enter(s);
    s = block;
  }
  if (s->bytes != bytes) {
    segment *const rest = split(s, at + bytes);
    s->state = segment_state::live;
    enter(rest);
  }
  s->state = segment_state::live;
  rekey(s->previous);
  rekey(s->next);
  return s;
}

segment *extent_map::release(segment *live) {
  return settle(live, segment_state::free);
}

segment *extent_map::place_at(segment *s, std::uint64_t begin, std::uint64_t bytes) {
  const std::uint64_t end = begin + bytes;
  bool was_free = s->state == segment_state::free;
  if (was_free) lift(s);
  segment *left = nullptr, *right = nullptr;  // what is cut off
  if (s->begin < begin) {
    left = s;
    s = split(s, begin);
    left->state = segment_state::free;
    if (!was_free && is(left->previous, segment_state::free)) {
      left = left->previous;
      lift(left);
      swallow_next(left);
    }
  }
  while (s->end() < end) {
    was_free = s->next->state == segment_state::free;
    if (was_free) lift(s->next);
    swallow_next(s);
  }
  if (end < s->end()) {
    right = split(s, end);
    right->state = segment_state::free;
    if (!was_free && is(right->next, segment_state::free)) {
      lift(right->next);
      swallow_next(right);
    }
  }
  s->state = segment_state::live;
  if (right != nullptr) enter(right);
  if (left != nullptr) enter(left);
  rekey(s->previous);
  rekey(s->next);
  return s;
}

// ---- where pages are missing ----

// The better of two places in an unbacked stretch and its free neighbours: from the left end, or up
// to the right end.
std::optional<extent_map::extent> extent_map::fit(const segment &unbacked, std::uint64_t bytes,
                                                  std::uint64_t alignment) const {
  const bool left = is(unbacked.previous, segment_state::free);
  const bool right = is(unbacked.next, segment_state::free);
  const std::uint64_t low = left ? unbacked.previous->begin : unbacked.begin;
  const std::uint64_t high = right ? unbacked.next->end() : unbacked.end();
  if (high - low < bytes) return std::nullopt;
  std::optional<extent> best;
  const auto consider = [&](std::uint64_t begin) {
    if (begin < low || begin > high - bytes) return;
    const std::uint64_t from = std::max(unbacked.begin, floor(begin));
    const std::uint64_t to = std::min(unbacked.end(), ceil(begin + bytes));
    if (to <= from) return;
    extent e;
    e.begin = begin;
    e.bytes = bytes;
    e.missing = {device_address(from), static_cast<std::size_t>(to - from)};
    if (!best || e.missing.bytes < best->missing.bytes) best = e;
  };
  consider(align_up(low, alignment));
  if (right) consider((high - bytes) & ~(alignment - 1));
  return best;
}

std::optional<extent_map::extent> extent_map::carve(std::uint64_t bytes, std::uint64_t asked,
                                                    search how) {
  const std::uint64_t alignment = alignment_of(bytes, asked);
  std::optional<extent> best;
  segment *chosen = nullptr;
  std::size_t looks = how == search::thorough ? SIZE_MAX : quick_fits;
  unbacked_index_.each_from(bytes, [&](segment &s) {
    const auto e = fit(s, bytes, alignment);
    if (e && (!best || e->missing.bytes < best->missing.bytes ||
              (e->missing.bytes == best->missing.bytes && e->begin < best->begin))) {
      best = e;
      chosen = &s;
    }
    return --looks != 0 || !best;
  });
  if (!best) return std::nullopt;

  segment *const left = is(chosen->previous, segment_state::free) ? chosen->previous : nullptr;
  segment *const right = is(chosen->next, segment_state::free) ? chosen->next : nullptr;
  const std::uint64_t from = std::min(best->begin, best->missing.begin.value());
  const std::uint64_t to = std::max(best->begin + bytes, best->missing.end().value());
  lift(chosen);
  segment *busy = chosen, *before = nullptr, *last = chosen;
  if (from > chosen->begin) {
    before = chosen;
    busy = last = split(chosen, from);
  } else if (from < chosen->begin) {
    lift(left);
    busy = from > left->begin ? split(left, from) : left;
    if (busy != left) enter(left);
  }
  if (to < last->end()) {
    enter(split(last, to));
  } else if (to > last->end()) {
    lift(right);
    if (to < right->end()) enter(split(right, to));
    last = right;
  }
  while (busy->end() < to) swallow_next(busy);
  busy->state = segment_state::live;
  if (before != nullptr) enter(before);
  rekey(busy->previous);
  rekey(busy->next);
  best->busy = busy;
  return best;
}

segment *extent_map::commit(const extent &e) {
  segment *s = e.busy;
  backed_ += e.missing.bytes;
  if (e.begin > s->begin) {
    segment *const block = split(s, e.begin);
    settle(s, segment_state::free);
    s = block;
  }
  if (e.begin + e.bytes < s->end()) settle(split(s, e.begin + e.bytes), segment_state::free);
  return s;
}

void extent_map::abandon(const extent &e) {
  segment *s = e.busy;
  if (e.missing.begin.value() > s->begin) {
    segment *const middle = split(s, e.missing.begin.value());
    settle(s, segment_state::free);
    s = middle;
  }
  if (e.missing.end().value() < s->end()) {
    settle(split(s, e.missing.end().value()), segment_state::free);
  }
  settle(s, segment_state::unbacked);
}

}  // namespace stillmap
