// The locks of several arenas at once, in the order of their numbers. Internal.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "stillmap/allocators/engine/arena.h"

namespace stillmap {

// In the order of their numbers. Never gets shorter.
using arena_list = std::vector<std::shared_ptr<arena>>;

// Those of two arenas, which may be the same.
class STILLMAP_SCOPED_CAPABILITY arena_pair_lock {
 public:
  arena_pair_lock(const arena &one, const arena &other) STILLMAP_ACQUIRE(one.lock(), other.lock())
      : first_(one.id <= other.id ? one.lock() : other.lock()),
        second_(one.id <= other.id ? other.lock() : one.lock()) {
    first_.lock();
    if (&first_ != &second_) second_.lock();
  }
  arena_pair_lock(const arena_pair_lock &) = delete;
  ~arena_pair_lock() STILLMAP_RELEASE() {
    first_.unlock();
    if (&first_ != &second_) second_.unlock();
  }

 private:
  arena_lock &first_, &second_;
};

// Those of all arenas of an allocator. The analysis follows no lock in a list: a function that is given an
// object of this class tells it which arena's lock is held.
class all_arena_locks {
 public:
  // Requires: the list does not change meanwhile.
  explicit all_arena_locks(const arena_list &all) : all_(all) {
    for (const auto &a : all_) a->lock().lock();
  }
  all_arena_locks(const all_arena_locks &) = delete;
  ~all_arena_locks() {
    for (const auto &a : all_) a->lock().unlock();
  }

  // Requires: the arena is in the list.
  void assume_held(const arena &a) const STILLMAP_ASSERT_CAPABILITY(a.lock()) {
    static_cast<void>(a);
  }

 private:
  const arena_list &all_;
};

}  // namespace stillmap
