// Memory over a run, by replaying it on one allocator after the other. docs/traces.md#memory-over-a-run
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/replay/replay_plan.h"
#include "bench/replay/replay_target.h"
#include "stillmap/allocators/report/timeline_picture.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::replay {

struct timeline_options {
  std::vector<const target_kind *> kinds;
  std::optional<std::uint64_t> capacity;  // bytes of device memory; none: all of it
  std::size_t points = 800;               // of each curve, at most
};

// `of`: the name of the trace. Allocators that the device cannot have (not_supported) have no curve.
// Errors: as run(). Running out of memory ends a curve.
result<timeline_picture> timeline_of(const device &d, const replay_plan &plan,
                                     const timeline_options &o, const std::string &of);

// Writes the picture to a file whose name ends with .svg, and creates missing folders.
// Errors: invalid_argument (another ending), the system's, naming the path.
status write_timeline(const timeline_picture &p, const std::string &path);

}  // namespace stillmap::replay
