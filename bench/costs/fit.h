// The cost of a call as in hostcuda's `costs=`: a fixed time and a time per MiB.
#pragma once

#include <vector>

namespace stillmap::costs {

struct sized_time {
  double mib = 0;
  double ns = 0;
};

struct price {
  double fixed_ns = 0;
  double ns_per_mib = 0;
};

// Fits a line through `times` with the least squares of the relative errors: with absolute errors
// the largest size alone would decide, and most calls are small. Neither part is negative. Of one
// time: that time, whatever the size. Of none: 0.
price fit(const std::vector<sized_time> &times);

}  // namespace stillmap::costs
