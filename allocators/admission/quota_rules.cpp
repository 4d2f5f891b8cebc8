#include "stillmap/allocators/admission/quota_rules.h"

#include <algorithm>
#include <tuple>

#include "stillmap/allocators/admission/quota_ledger.h"

namespace stillmap {
namespace {

// A sum that a damaged table cannot wrap around.
std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}
std::uint64_t difference(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : 0;
}

}  // namespace

quota_rules::quota_rules(const quota_table &t)
    : table_(t), anyone_waits_(has_waits(t)), now_(anyone_waits_ ? quota_ledger::now() : 0) {}

status quota_rules::check(const quota_terms &terms) {
  if (terms.minimum <= terms.maximum) return {};
  return make_error(errc::invalid_argument, "the minimum exceeds the maximum", terms.minimum,
                    terms.maximum, error_unit::bytes);
}

std::uint64_t quota_rules::capacity() const {
  const quota_header &h = table_.header;
  if (h.device_bytes == 0) return h.limit;
  return std::min(h.limit, difference(h.device_bytes, h.outside));
}

bool quota_rules::is_before(std::size_t other, std::size_t participant) const {
  if (other == participant || !waits(other)) return false;
  const auto rank = [&](std::size_t i) {
    const quota_slot &s = table_.slots[i];
    const bool first = waits(i) && s.wait.overtaken >= max_overtaken;
    return std::tuple(first ? 0 : 1, first ? std::int64_t{0} : -std::int64_t{s.priority},
                      waits(i) ? s.wait.ticket : UINT64_MAX);
  };
  return rank(other) < rank(participant);
}

quota_rules::decision quota_rules::decide(std::size_t participant, std::uint64_t bytes) const {
  const quota_slot &own = table_.slots[participant];
  const std::uint64_t wanted = sum(own.reserved(), bytes);
  if (wanted > own.maximum) {
    return {verdict::beyond_maximum, 0, difference(own.maximum, own.reserved())};
  }
  std::uint64_t held = 0, others = 0, minima = 0, ahead = 0;
  for (std::size_t i = 0; i < table_.header.used; ++i) {
    const quota_slot &s = table_.slots[i];
    if (i == participant || !s.is_taken()) continue;
    held = sum(held, s.reserved());
    others = sum(others, charged(s));
    minima = sum(minima, s.minimum);
    if (anyone_waits_ && is_before(i, participant)) {
      ahead =
          sum(ahead, difference(std::max(sum(s.reserved(), s.wait.bytes), s.minimum), charged(s)));
    }
  }
  if (sum(wanted, minima) > table_.header.limit) {
    return {verdict::beyond_limit, 0,
            difference(difference(table_.header.limit, minima), own.reserved())};
  }
  // Its minimum is kept free for it. Above that it leaves the minima of the others, and what those get that
  // come before it.
  const bool guaranteed = wanted <= own.minimum;
  const std::uint64_t beside = guaranteed ? held : sum(others, ahead);
  const std::uint64_t room = difference(capacity(), beside);
  if (wanted <= room) return {verdict::granted, 0, room - own.reserved(), anyone_waits_};
  return {verdict::wait, difference(sum(wanted, beside), capacity()),
          difference(room, own.reserved()), anyone_waits_};
}

std::vector<quota_rules::target> quota_rules::targets(std::size_t participant,
                                                      reclaim_kind kind) const {
  const quota_slot &own = table_.slots[participant];
  std::vector<target> out;
  for (std::size_t i = 0; i < table_.header.used; ++i) {
    const quota_slot &s = table_.slots[i];
    if (i == participant || !s.is_taken() || s.reserved() <= s.minimum) continue;
    if ((s.offers >> static_cast<unsigned>(kind) & 1) == 0) continue;
    // What costs its holder something is taken neither from one that comes before, so that of two that ask each
    // other one is served, nor from a higher priority, unless that waits and comes after: it was overtaken in turn.
    const bool after = waits(i) && is_before(participant, i);
    if (kind != reclaim_kind::cached &&
        (is_before(i, participant) || (s.priority > own.priority && !after))) {
      continue;
    }
    out.push_back({i, s.reserved() - s.minimum});
  }
  std::stable_sort(out.begin(), out.end(), [&](const target &a, const target &b) {
    const std::int32_t pa = table_.slots[a.slot].priority, pb = table_.slots[b.slot].priority;
    return pa != pb ? pa < pb : a.above_minimum > b.above_minimum;
  });
  return out;
}

}  // namespace stillmap
