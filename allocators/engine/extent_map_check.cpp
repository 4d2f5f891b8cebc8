// Checks the invariants of an extent map.
#include "stillmap/allocators/engine/extent_map.h"

namespace stillmap {

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
