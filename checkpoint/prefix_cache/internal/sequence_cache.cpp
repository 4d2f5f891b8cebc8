#include "stillmap/checkpoint/prefix_cache/internal/sequence_cache.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include "stillmap/checkpoint/prefix_cache/internal/page_offsets.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {
namespace {

std::vector<kv::sequence_place> places_of(const stored_sequences &r) {
  std::vector<kv::sequence_place> out;
  std::transform(r.entries.begin(), r.entries.end(), std::back_inserter(out),
                 [](const stored_sequence &e) { return e.place; });
  return out;
}

std::size_t groups_per_slot(const kv::sequence_arena &a) {
  return a.layout().pages_of(0, a.longest()).count;
}

// In range 0, which stands for all: a page group is shared as a whole.
virtual_range first_pages(const kv::sequence_arena &a, const kv::sequence_place &p) {
  const std::size_t page = a.layout().page_bytes();
  return {a.range().begin + p.slot * groups_per_slot(a) * page,
          a.layout().pages_of(0, p.tokens).count * page};
}

// Sequences share pages from the beginning on: so all that one shares with any before it, it shares with the one that
// has its last shared page.
status find_shared(const kv::sequence_arena &a, std::vector<stored_sequence> &entries) {
  std::unordered_map<std::uint64_t, std::uint32_t> first_with;
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    kv::sequence_place &p = entries[i].place;
    for (const mapping_record &m : a.device().space().mappings(first_pages(a, p))) {
      if (!m.backing) continue;  // suspended: that is said when the pages are read
      const auto [at, is_first] = first_with.try_emplace(m.backing->id(), i);
      if (is_first) continue;
      ++p.shared;
      p.with = at->second;
    }
    const auto is_partly_full = [&](std::uint32_t e) {
      return p.shared > a.layout().pages_within(0, entries[e].place.tokens).count;
    };
    if (p.shared == 0 || (!is_partly_full(i) && !is_partly_full(p.with))) continue;
    return make_error(errc::invalid_argument,
                      "the tokens end in a page that another entry has, too: fork the sequence "
                      "with as many tokens, and name the fork",
                      entries[is_partly_full(i) ? i : p.with].place.tokens, 0, error_unit::items);
  }
  return {};
}

// The entries of a record, of sequences that make() makes of places. Nothing can fail once there are sequences.
template <class Make>
result<std::vector<sequence_entry>> entries_of(stored_sequences r, const Make &make) {
  std::vector<sequence_entry> out(r.entries.size());
  STILLMAP_ASSIGN_OR_RETURN(const auto ids, make(places_of(r)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = {ids[i], r.entries[i].place.tokens, std::move(r.entries[i].key)};
  }
  return out;
}

}  // namespace

arena_shape sequence_cache::shape_of(const arena &a) {
  return arena_shape::of(a.layout(), a.sequences(), a.longest());
}

result<stored_sequences> sequence_cache::describe(const arena &a, std::span<const entry> entries) {
  if (!a.settled()) {
    return make_error(errc::busy, "the arena's worker changes its memory: begin_step() first");
  }
  stored_sequences r{shape_of(a), {}};
  std::unordered_set<std::uint32_t> seen;
  for (const entry &e : entries) {
    if (!a.has(e.sequence) || !seen.insert(e.sequence.slot).second) {
      return make_error(errc::invalid_argument, "there is no such sequence, or it is named twice",
                        e.sequence.slot);
    }
    if (e.tokens > a.capacity(e.sequence)) {
      return make_error(errc::invalid_argument, "the sequence has no memory for as many tokens",
                        e.tokens, a.capacity(e.sequence), error_unit::items);
    }
    STILLMAP_RETURN_IF_ERROR(check_key(e.key));
    r.entries.push_back({{.slot = e.sequence.slot, .tokens = e.tokens}, e.key});
  }
  STILLMAP_RETURN_IF_ERROR(find_shared(a, r.entries));
  return r;
}

status sequence_cache::check_unused(const arena &a) {
  const std::size_t there = a.stats().sequences;
  if (there == 0) return {};
  return make_error(errc::busy, "the arena has sequences: take one that has none", there, 0,
                    error_unit::items);
}

status sequence_cache::check(const arena &a, const record &r) {
  const status good = a.check(places_of(r));
  if (good) return {};
  return make_error(errc::corrupt, "the prefix table has sequences that no arena can have",
                    good.error().value, good.error().limit);
}

std::vector<std::size_t> sequence_cache::pages_of(const arena &a, const record &r) {
  std::vector<std::size_t> groups;
  for (const stored_sequence &e : r.entries) {
    const std::size_t n = a.layout().pages_of(0, e.place.tokens).count;
    for (std::size_t g = 0; g < n; ++g) groups.push_back(e.place.slot * groups_per_slot(a) + g);
  }
  return page_offsets(a.layout(), a.range().bytes, std::move(groups));
}

result<std::vector<sequence_entry>> sequence_cache::claim(arena &a, record r, stream_ref stream) {
  return entries_of(std::move(r), [&](const auto &places) { return a.claim(places, stream); });
}

result<std::vector<sequence_entry>> sequence_cache::adopt(arena &a, record r, device_address from) {
  return entries_of(std::move(r), [&](const auto &places) { return a.adopt(places, from); });
}

void sequence_cache::abandon(arena &a, std::span<const entry> entries) {
  for (const entry &e : entries) static_cast<void>(a.remove(e.sequence));
}

}  // namespace stillmap::prefix_cache
