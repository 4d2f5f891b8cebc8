#include "bench/costs/many_mappings.h"

#include <algorithm>

#include "stillmap/vmm/base/try.h"

namespace stillmap::costs {

virtual_range many_mappings::pages_of(const chunk &c, std::size_t first, std::size_t n) const {
  return {c.at.get().begin + first * machine_.page(), n * machine_.page()};
}

void many_mappings::grow(std::size_t count, const time_left &left) {
  const auto need = [&]() -> status {
    if (!page_) {
      STILLMAP_ASSIGN_OR_RETURN(page_, machine_.create(machine_.page()));
    }
    while (count_ < count && !left.over()) {
      if (chunks_.empty() || chunks_.back().mapped == per_chunk) {
        STILLMAP_ASSIGN_OR_RETURN(addresses at, machine_.reserve(per_chunk * machine_.page()));
        chunks_.push_back({std::move(at), 0});
      }
      chunk &last = chunks_.back();
      const std::size_t n = std::min(count - count_, per_chunk - last.mapped);
      STILLMAP_RETURN_IF_ERROR(extend(last, n));
    }
    return {};
  };
  if (refusal_) return;
  if (const status s = need(); !s) refusal_ = s.error();
}

status many_mappings::extend(chunk &c, std::size_t n) {
  const std::size_t first = c.mapped;
  status mapped;
  for (std::size_t i = 0; i < n; ++i) {
    mapped = machine_.driver().map(pages_of(c, c.mapped, 1).begin, machine_.page(), page_.get());
    if (!mapped) break;
    ++c.mapped;
  }
  const status allowed = c.mapped == first ? status{} : allow(c, first);
  return mapped ? allowed : mapped;
}

// All in one call; if that is refused, one after the other, to find the first refused mapping.
status many_mappings::allow(chunk &c, std::size_t first) {
  if (machine_.allow(pages_of(c, first, c.mapped - first))) {
    count_ += c.mapped - first;
    return {};
  }
  for (std::size_t i = first; i < c.mapped; ++i) {
    const status one = machine_.allow(pages_of(c, i, 1));
    if (one) {
      ++count_;
      continue;
    }
    (void)unmap(c, i);  // mappings without access are not counted
    return one;
  }
  return {};
}

status many_mappings::unmap(chunk &c, std::size_t first) {
  const std::size_t n = c.mapped - first;
  if (n == 0) return {};
  status done = machine_.driver().unmap(pages_of(c, first, n));
  // The driver may refuse to unmap several at once.
  for (std::size_t i = first; !done && i < c.mapped; ++i) {
    const status one = machine_.driver().unmap(pages_of(c, i, 1));
    if (!one) return one;
    if (i + 1 == c.mapped) done = {};
  }
  c.mapped = first;
  return {};
}

status many_mappings::undo() {
  status first;
  for (chunk &c : chunks_) {
    const status s = unmap(c, 0);
    if (first && !s) first = s;
  }
  chunks_.clear();
  if (const status s = page_.give_back(); first && !s) first = s;
  count_ = 0;
  refusal_.reset();
  return first;
}

}  // namespace stillmap::costs
