// Pages that leave an arena's free memory, for good or to be lent.
#include <algorithm>

#include "stillmap/allocators/internal/extent_map.h"

namespace stillmap {

// ---- pages that go ----

std::size_t extent_map::take(std::size_t pages, std::vector<segment *> &out) {
  if (whole_pages_ == 0) return 0;
  std::vector<segment *> whole;
  free_rows_.each_row(page_, [&](std::span<const free_bins::entry> row, std::uint64_t) {
    for (const free_bins::entry &e : row) {
      if (whole_pages(*e.of) != 0) whole.push_back(e.of);
    }
    return true;
  });
  std::sort(whole.begin(), whole.end(),
            [](const segment *a, const segment *b) { return a->begin < b->begin; });
  std::size_t got = 0;
  for (segment *s : whole) {
    if (got == pages) break;
    const std::size_t n = std::min(pages - got, whole_pages(*s));
    // From the upper end, so that what stays is in one piece with what lies below.
    const std::uint64_t to = floor(s->end()), from = to - n * page_;
    lift(s);
    if (to < s->end()) enter(split(s, to));
    if (from > s->begin) {
      segment *const rest = split(s, from);
      enter(s);
      s = rest;
    }
    s->state = segment_state::leaving;
    rekey(s->previous);
    rekey(s->next);
    backed_ -= n * page_;
    got += n;
    out.push_back(s);
  }
  return got;
}

void extent_map::put_back(segment *leaving) {
  backed_ += leaving->bytes;
  settle(leaving, segment_state::free);
}

void extent_map::gone(segment *leaving) {
  settle(leaving, segment_state::unbacked);
}

// ---- pages at several addresses ----

void extent_map::lend(segment *leaving, std::uint64_t to) {
  for (std::uint64_t at = leaving->begin; at < leaving->end(); at += page_, to += page_) {
    pages_.share(at, to);
  }
  lent_ += leaving->bytes;
  settle(leaving, segment_state::lent);
}

extent_map::run extent_map::next_run(std::uint64_t lent, std::size_t n, std::uint64_t asker) {
  const std::uint32_t *const numbers = pages_.shared_from(lent);
  run r{pages_.shared(*numbers).owner, 0};
  for (std::uint64_t next = r.owner; r.pages < n; ++r.pages, next += page_) {
    shared_page &page = pages_.shared(numbers[r.pages]);
    if (page.owner != next || page.asked_by == asker) break;
    page.asked_by = asker;
  }
  return r;
}

void extent_map::recall(std::uint64_t lent, std::size_t n) {
  const std::uint64_t bytes = n * page_, owner = owner_of(lent);
  segment *s = pages_.at(owner);
  lift(s);
  if (owner + bytes < s->end()) enter(split(s, owner + bytes));
  if (owner > s->begin) {
    segment *const there = split(s, owner);
    enter(s);
    s = there;
  }
  settle(s, segment_state::lent);

  s = pages_.at(lent);
  if (lent + bytes < s->end()) split(s, lent + bytes);
  if (lent > s->begin) s = split(s, lent);
  settle(s, segment_state::free);
  const std::uint32_t *const numbers = pages_.shared_from(lent);
  for (std::size_t i = 0; i < n; ++i) pages_.shared(numbers[i]).owner = lent + i * page_;
}

void extent_map::forget_lent(std::vector<segment *> &out) {
  for (segment *first : firsts_) {
    for (segment *s = first; s != nullptr; s = s->next) {
      if (s->state != segment_state::lent) continue;
      for (std::uint64_t at = s->begin; at < s->end(); at += page_) {
        pages_.unshare(owner_of(at));
        pages_.unshare(at);
      }
      s->state = segment_state::leaving;
      out.push_back(s);
    }
  }
  lent_ = 0;
  pages_.forget_shared();
}

}  // namespace stillmap
