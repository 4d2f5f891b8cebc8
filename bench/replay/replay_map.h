// Maps of a replayed allocator's heap: at its peak of the last iteration, or where it ran out of
// memory. docs/heap_map.md
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "bench/replay/replay_plan.h"
#include "stillmap/allocators/report/heap_picture.h"
#include "stillmap/allocators/report/heap_report.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::replay {

struct replay_moment {
  heap_snapshot heap;
  bool oom = false;
  std::uint64_t wanted = 0;  // oom: bytes of the request that failed
  std::size_t op = 0;  // index in the plan: the last operation that was served, or the failed one
};

// Returns the index in plan.ops of the request after which the live bytes of the last iteration
// that allocates first reach their maximum; plan.ops.size() if nothing is allocated. The first iteration includes
// the events before it.
std::size_t peak_of_last_iteration(const replay_plan &plan);

enum class map_format { svg, html, json, pickle };
// By the file's ending. Errors: invalid_argument, with the known endings.
result<map_format> map_format_of(const std::string &path);

struct named_moment {
  std::string allocator;
  std::uint64_t capacity = 0;     // bytes it may commit; 0: unknown
  bool beside_a_failure = false;  // at the request at which another allocator ran out of memory
  replay_moment moment;
};
// Several heaps side by side, at the same scale. `of`: the name of the trace.
heap_picture picture_of(std::span<const named_moment> moments, const std::string &of);
// Writes the map to a file, and creates missing folders.
// Errors: invalid_argument (several heaps in a format that is no picture), the system's, naming the
//         path.
status write_map(std::span<const named_moment> moments, const std::string &of,
                 const std::string &path);

}  // namespace stillmap::replay
