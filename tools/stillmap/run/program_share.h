// The quota that a program is to take part in, looked at before the program starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct program_share {
  std::string quota;                       // "gpu0", "gpu0:60GiB"; empty: none
  std::uint64_t minimum = 0, maximum = 0;  // bytes; a maximum of 0: none
  int priority = 0;
};

// The variables that make the program take part. Joins the quota and leaves it, so that what would fail fails here; a
// quota that does not exist yet is created if it has a limit.
// Errors: exit_usage (the name; terms that contradict each other), exit_failed (the minima of others leave less than the
//         minimum), those of shared_quota::open.
outcome<std::vector<std::string>> variables_of(const program_share &s);

}  // namespace stillmap::tool
