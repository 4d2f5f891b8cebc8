// The least device memory in which two allocators serve a recorded program.
#pragma once

#include <cstdint>
#include <optional>

#include "bench/replay/replay.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct minima {
  std::uint64_t ours = 0;
  std::optional<std::uint64_t> other;  // none: it runs out with all of the device's memory
  bool apart() const { return !other || ours < *other; }
  // Halfway between the two, or between ours and all memory: `free` bytes.
  std::uint64_t between(std::uint64_t page_bytes, std::uint64_t free) const;
};

// The least memory, of at least `from` bytes, that an allocator serves the program in; none: it runs out
// with all of the device's. An allocator may serve a program in less than it runs out with.
outcome<std::optional<std::uint64_t>> find_least(const device &d, const replay::replay_plan &plan,
                                                 const replay::target_kind *kind,
                                                 std::uint64_t from = 0);
// Errors: exit_failed: `ours` runs out with all of the device's memory.
outcome<minima> find_minima(const device &d, const replay::replay_plan &plan,
                            const replay::target_kind *ours, const replay::target_kind *other);

}  // namespace stillmap::tool
