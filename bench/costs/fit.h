// What a call costs as hostcuda's `costs=` has it: so much each time, and so much per MiB.
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

// The line through `times` with the least squares of the errors in proportion to the times: with
// the errors as they are the largest size would decide alone, and most calls are small. Neither
// part is negative. Of one time: that time, whatever the size. Of none: 0.
price fit(const std::vector<sized_time> &times);

}  // namespace stillmap::costs
