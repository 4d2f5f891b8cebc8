// Maps of a replayed allocator's heap: at its peak of the last iteration, or where it ran out of
// memory. docs/heap_map.md
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "stillmap/allocators/replay/replay_plan.h"
#include "stillmap/allocators/report/heap_picture.h"
#include "stillmap/allocators/report/heap_report.h"
#include "stillmap/vmm/error.h"

namespace stillmap::replay {

struct replay_moment {
  heap_snapshot heap;
  bool oom = false;
  std::uint64_t wanted = 0;  // oom: bytes of the request that failed
  std::size_t op = 0;        // of the plan: the last that was served, or the one that failed
};

// The request after which most bytes are live for the first time in the last iteration (the first
// one includes what came before it); its index in plan.ops, or the number of them where nothing is
// allocated.
std::size_t peak_of_last_iteration(const replay_plan &plan);

enum class map_format { svg, html, json, pickle };
// By the file's ending. Errors: invalid_argument, with the known endings.
result<map_format> map_format_of(const std::string &path);

struct named_moment {
  std::string allocator;
  std::uint64_t capacity = 0;     // bytes it may have; 0: not said
  bool beside_a_failure = false;  // at the request at which another one had no memory left
  replay_moment moment;
};
// Several heaps beside each other, to one scale; `of`: what was replayed.
heap_picture picture_of(std::span<const named_moment> moments, const std::string &of);
// Writes it, with the folders it needs. Errors: invalid_argument (several heaps in a format that is
// no picture), the system's, naming the path.
status write_map(std::span<const named_moment> moments, const std::string &of,
                 const std::string &path);

}  // namespace stillmap::replay
