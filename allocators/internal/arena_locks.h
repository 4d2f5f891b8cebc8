// The locks of several arenas at once, in the order of their numbers. Internal.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "stillmap/allocators/internal/arena.h"

namespace stillmap {

// Requires: the allocator's growth mutex, so that there is one at a time.
class arena_locks {
 public:
  static constexpr std::size_t most = 32;

  arena_locks(const arena &one, const arena &other) {
    const bool in_order = one.id <= other.id;
    lock(in_order ? one : other);
    if (&one != &other) lock(in_order ? other : one);
  }
  // Requires: no more than `most`.
  explicit arena_locks(const std::vector<std::unique_ptr<arena>> &all) {
    for (const auto &a : all) lock(*a);
  }

 private:
  void lock(const arena &a) { locks_[count_++] = std::unique_lock(a.lock); }

  std::array<std::unique_lock<arena_lock>, most> locks_;
  std::size_t count_ = 0;
};

}  // namespace stillmap
