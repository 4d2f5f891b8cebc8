#include "stillmap/allocators/admission/quota_rules.h"

#include <algorithm>
#include <tuple>

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
    const quota_exchange &e = table_.exchanges[i];
    const bool first = waits(i) && e.wait.overtaken >= max_overtaken;
    return std::tuple(first ? 0 : 1, first ? std::int64_t{0} : -std::int64_t{e.priority},
                      waits(i) ? e.wait.ticket : UINT64_MAX);
  };
  return rank(other) < rank(participant);
}

quota_rules::others_sums quota_rules::sum_of_others(std::size_t participant) const {
  others_sums out;
  for (const quota_share &s : table_.used()) {
    if (&s == &table_.shares[participant] || !s.is_taken()) continue;
    out.held = sum(out.held, s.reserved());
    out.charged = sum(out.charged, charged(s));
    out.minima = sum(out.minima, s.minimum);
  }
  return out;
}

quota_rules::decision quota_rules::decide(std::size_t participant, std::uint64_t bytes) const {
  const quota_share &own = table_.shares[participant];
  const std::uint64_t wanted = sum(own.reserved(), bytes);
  if (wanted > own.maximum) {
    return {verdict::beyond_maximum, 0, difference(own.maximum, own.reserved())};
  }
  const others_sums others = sum_of_others(participant);
  if (sum(wanted, others.minima) > table_.header.limit) {
    return {verdict::beyond_limit, 0,
            difference(difference(table_.header.limit, others.minima), own.reserved())};
  }
  // Its minimum is kept free for it. Above that it leaves the minima of the others, and what those get that
  // come before it.
  const bool guaranteed = wanted <= own.minimum;
  const std::uint64_t beside =
      guaranteed ? others.held : sum(others.charged, needed_before(participant));
  const std::uint64_t room = difference(capacity(), beside);
  if (wanted <= room) return {verdict::granted, 0, room - own.reserved(), anyone_waits_};
  return {verdict::wait, difference(sum(wanted, beside), capacity()),
          difference(room, own.reserved()), anyone_waits_};
}

// As decide(): within its minimum it gets what others do not hold, above that what is left beside all that is kept free.
std::uint64_t quota_rules::available(std::size_t participant) const {
  const quota_share &own = table_.shares[participant];
  const others_sums others = sum_of_others(participant);
  const std::uint64_t most = std::min(own.maximum, difference(table_.header.limit, others.minima));
  const std::uint64_t guaranteed = std::min(own.minimum, difference(capacity(), others.held));
  const std::uint64_t beside = sum(others.charged, needed_before(participant));
  const std::uint64_t all = std::min(most, std::max(guaranteed, difference(capacity(), beside)));
  return difference(all, own.reserved());
}

std::uint64_t quota_rules::needed_before(std::size_t participant) const {
  std::uint64_t out = 0;
  for (std::size_t i = 0; anyone_waits_ && i < table_.header.used; ++i) {
    const quota_share &s = table_.shares[i];
    if (!s.is_taken() || !is_before(i, participant)) continue;
    const std::uint64_t then = sum(s.reserved(), table_.exchanges[i].wait.bytes);
    out = sum(out, difference(std::max(then, s.minimum), charged(s)));
  }
  return out;
}

std::vector<quota_rules::target> quota_rules::targets(std::size_t participant,
                                                      reclaim_kind kind) const {
  const std::int32_t own_priority = table_.exchanges[participant].priority;
  std::vector<target> out;
  for (std::size_t i = 0; i < table_.header.used; ++i) {
    const quota_share &s = table_.shares[i];
    const quota_exchange &e = table_.exchanges[i];
    if (i == participant || !s.is_taken() || s.reserved() <= s.minimum) continue;
    if ((e.offers >> static_cast<unsigned>(kind) & 1) == 0) continue;
    // What costs its holder something is taken neither from one that comes before, so that of two that ask each
    // other one is served, nor from a higher priority, unless that waits and comes after: it was overtaken in turn.
    const bool after = waits(i) && is_before(participant, i);
    if (kind != reclaim_kind::cached &&
        (is_before(i, participant) || (e.priority > own_priority && !after))) {
      continue;
    }
    out.push_back({i, s.reserved() - s.minimum});
  }
  std::stable_sort(out.begin(), out.end(), [&](const target &a, const target &b) {
    const auto [pa, pb] =
        std::pair(table_.exchanges[a.slot].priority, table_.exchanges[b.slot].priority);
    return pa != pb ? pa < pb : a.above_minimum > b.above_minimum;
  });
  return out;
}

}  // namespace stillmap
