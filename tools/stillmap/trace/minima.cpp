#include "tools/stillmap/trace/minima.h"

#include <fmt/format.h>

#include <algorithm>

#include "stillmap/vmm/base/try.h"

namespace stillmap::tool {

using namespace replay;

std::uint64_t minima::between(std::uint64_t page_bytes, std::uint64_t free) const {
  const std::uint64_t most = std::max(ours, other.value_or(free));
  return (ours + (most - ours) / 2) / page_bytes * page_bytes;
}

outcome<std::optional<std::uint64_t>> find_least(const device &d, const replay_plan &plan,
                                                 const target_kind *kind, std::uint64_t from) {
  replay_options o;
  o.kind = kind;
  STILLMAP_ASSIGN_OR_RETURN(const auto ample, replay::run(d, plan, o));
  if (ample.oom) return std::nullopt;
  STILLMAP_ASSIGN_OR_RETURN(const std::uint64_t least,
                            find_min_capacity(d, plan, o, ample.peak_committed_bytes, from));
  return least;
}

outcome<minima> find_minima(const device &d, const replay_plan &plan, const target_kind *ours,
                            const target_kind *other) {
  STILLMAP_ASSIGN_OR_RETURN(const auto least, find_least(d, plan, ours));
  if (!least) {
    return fail(exit_failed, fmt::format("'{}' runs out of memory with all of this device's: a "
                                         "device with more, or --shrink, may do",
                                         ours->name));
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto least_of_other, find_least(d, plan, other));
  return minima{*least, least_of_other};
}

}  // namespace stillmap::tool
