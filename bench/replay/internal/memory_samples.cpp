#include "bench/replay/internal/memory_samples.h"

#include <algorithm>
#include <utility>

#include "stillmap/vmm/base/units.h"

namespace stillmap::replay {

memory_samples::memory_samples(const replay_plan &plan, std::size_t points)
    : interval_(
          std::max<std::uint64_t>(divide_up(plan.requests, std::max<std::size_t>(points, 1)), 1)),
      bytes_of_(plan.slots) {}

void memory_samples::served(const planned_op &op, std::uint64_t committed) {
  if (op.verb == trace_verb::allocate) live_ += bytes_of_[op.slot] = op.bytes;
  if (op.verb == trace_verb::free) live_ -= std::exchange(bytes_of_[op.slot], 0);
  now_.live = std::max(now_.live, live_);
  now_.committed = std::max(now_.committed, committed);
  if (++now_.requests - begun_ < interval_) return;
  points_.push_back(now_);
  begun_ = now_.requests;
  now_.live = live_;
  now_.committed = committed;
}

std::vector<timeline_point> memory_samples::take() {
  if (now_.requests != begun_) points_.push_back(now_);
  return std::move(points_);
}

}  // namespace stillmap::replay
