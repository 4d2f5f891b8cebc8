// Calls against the number of neighbouring mappings under them, and what one call for all saves.
#include <algorithm>
#include <cstdio>

#include "bench/costs/parts.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::costs {
namespace {

// `n` pages side by side at `at`.
status map_all(const machine &m, device_address at, const std::vector<physical> &pages,
               std::size_t n, std::vector<mapping> &there, call_times &into) {
  for (std::size_t i = 0; i < n; ++i) {
    STILLMAP_ASSIGN_OR_RETURN(mapping made, into.time("cuMemMap (each)", [&] {
      return m.map(at + i * m.page(), m.page(), pages[i].get());
    }));
    there.push_back(std::move(made));
  }
  return {};
}

status together(const machine &m, device_address at, const std::vector<physical> &pages,
                std::size_t n, call_times &into) {
  std::vector<mapping> there;
  STILLMAP_RETURN_IF_ERROR(map_all(m, at, pages, n, there, into));
  const virtual_range all{at, n * m.page()};
  STILLMAP_RETURN_IF_ERROR(into.time("cuMemSetAccess", [&] { return m.allow(all); }));
  // One call unmaps them all, so no mapping may be given back again.
  const status gone = into.time("cuMemUnmap", [&] { return m.driver().unmap(all); });
  if (gone) {
    for (mapping &one : there) one.forget();
  }
  return gone;
}

status one_by_one(const machine &m, device_address at, const std::vector<physical> &pages,
                  std::size_t n, call_times &into) {
  std::vector<mapping> there;
  call_times apart;  // together() has timed the maps already
  STILLMAP_RETURN_IF_ERROR(map_all(m, at, pages, n, there, apart));
  const status allowed = into.time("cuMemSetAccess (a call each)", [&]() -> status {
    for (std::size_t i = 0; i < n; ++i) {
      STILLMAP_RETURN_IF_ERROR(m.allow({at + i * m.page(), m.page()}));
    }
    return {};
  });
  if (!allowed) return allowed;
  return into.time("cuMemUnmap (a call each)", [&]() -> status {
    for (mapping &one : there) STILLMAP_RETURN_IF_ERROR(one.give_back());
    return {};
  });
}

void say_what_batching_saves(call_times &times, std::size_t n, table &out) {
  for (const std::string call : {"cuMemSetAccess", "cuMemUnmap"}) {
    const double one = times.of(call).summary().median_ns,
                 each = times.of(call + " (a call each)").summary().median_ns;
    if (one <= 0 || each <= 0) continue;
    char factor[32];
    std::snprintf(factor, sizeof factor, "%.1f", each / one);
    out.add_fact("batching." + call, each / one,
                 call + " over " + std::to_string(n) + " neighbouring mappings takes " +
                     microseconds(one) + " µs in one call and " + microseconds(each) +
                     " µs in a call each: " + factor + " times as long");
  }
}

}  // namespace

void measure_adjacent(const machine &m, time_left left, bool quick, table &out) {
  const std::size_t fit = m.allowance() / m.page();
  const std::size_t most = std::min<std::size_t>(quick ? 32 : 512, std::max<std::size_t>(fit, 1));
  auto at = m.reserve(most * m.page());
  if (!at) return out.refused(at.error(), against::adjacent, static_cast<double>(most));
  std::vector<physical> pages;
  while (pages.size() < most) {
    auto made = m.create(m.page());
    if (!made) {
      out.refused(made.error(), against::adjacent, static_cast<double>(pages.size() + 1));
      break;
    }
    pages.push_back(std::move(*made));
  }
  std::vector<std::size_t> counts;
  for (std::size_t n = 1; n <= pages.size(); n *= 2) counts.push_back(n);
  const device_address begin = at->get().begin;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::size_t n = counts[i];
    // A sample has many mappings, so fewer samples are enough.
    const time_left now = left.share(1.0 / static_cast<double>(counts.size() - i)).at_most(200);
    call_times times;
    const auto once = [&](call_times &into) {
      const status done = together(m, begin, pages, n, into);
      return done ? one_by_one(m, begin, pages, n, into) : done;
    };
    if (!sample(now, times, against::adjacent, static_cast<double>(n), out, once)) return;
    if (i + 1 == counts.size()) say_what_batching_saves(times, n, out);
  }
}

}  // namespace stillmap::costs
