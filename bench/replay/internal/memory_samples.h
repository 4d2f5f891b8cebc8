// Takes points of memory over a replay. Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/replay/replay_plan.h"
#include "stillmap/allocators/report/timeline_picture.h"

namespace stillmap::replay {

class memory_samples {
 public:
  // At most `points` intervals of as many requests each.
  memory_samples(const replay_plan &plan, std::size_t points);

  // A request was served, and `committed` bytes are held after it.
  void served(const planned_op &op, std::uint64_t committed);
  std::vector<timeline_point> take();

 private:
  std::uint64_t interval_;
  std::vector<std::uint64_t> bytes_of_;  // by slot
  std::uint64_t live_ = 0;
  timeline_point now_;
  std::uint64_t begun_ = 0;  // requests before the interval
  std::vector<timeline_point> points_;
};

}  // namespace stillmap::replay
