// What an arena's books must never say.
#include "stillmap/allocators/internal/extent_map.h"

namespace stillmap {

std::string extent_map::contradiction(bool growing) const {
  std::size_t backed = 0, free = 0, pages = 0, reserved = 0, lent = 0;
  for (const segment *first : firsts_) {
    if (first->previous != nullptr) return "a first segment has one before it";
    for (const segment *s = first; s != nullptr; s = s->next) {
      if (s->bytes == 0) return "an empty segment";
      reserved += s->bytes;
      if (s->next != nullptr) {
        if (s->next->previous != s) return "neighbours that do not know each other";
        if (s->next->begin != s->end()) return "a gap or an overlap";
        if (s->next->state == s->state && s->state != segment_state::live &&
            s->state != segment_state::leaving) {
          return "two neighbours that should be one";
        }
      }
      const bool indexed = s->state == segment_state::free || s->state == segment_state::unbacked;
      if (s->by_size.in != indexed) return "in the wrong index";
      if (s->state == segment_state::unbacked || s->state == segment_state::leaving ||
          s->state == segment_state::lent) {
        if (s->begin % page_ != 0 || s->bytes % page_ != 0) return "part of a page without backing";
      } else {
        backed += s->bytes;
      }
      if (s->state == segment_state::free) {
        free += s->bytes;
        pages += whole_pages(*s);
      }
      if (s->state == segment_state::lent) {
        lent += s->bytes;
        for (std::uint64_t at = s->begin; at < s->end(); at += page_) {
          const std::uint32_t number = *pages_.shared_from(at);
          if (number == 0) return "a lent page that is mapped nowhere else";
          const std::uint64_t owner = pages_.shared(number).owner;
          if (*pages_.shared_from(owner) != number) return "a lent page that its owner knows not";
          const segment_state there = pages_.at(owner)->state;
          if (there != segment_state::free && there != segment_state::live) {
            return "a lent page that is nowhere";
          }
        }
      }
      for (std::uint64_t at = s->begin; at < s->end(); at = floor(at) + page_) {
        if (pages_.at(at) != s) return "an address that leads to another segment";
      }
      if (s->state == segment_state::unbacked) {
        bool found = false;
        unbacked_index_.each_from(key(*s), [&](segment &other) {
          found = found || &other == s;
          return !found;
        });
        if (!found) return "an unbacked segment under a stale key";
      }
    }
  }
  if (reserved != reserved_) return "reserved bytes";
  if (free != free_) return "free bytes";
  if (lent != lent_) return "lent bytes";
  if (pages != whole_pages_) return "whole free pages";
  if (growing ? backed < backed_ : backed != backed_) return "backed bytes";
  return "";
}

}  // namespace stillmap
