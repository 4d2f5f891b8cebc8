// The private pools of an allocator: their reference counts, and the streams they serve now. Pure
// bookkeeping: allocator_core gives them arenas, and keeps other requests away from their pages.
// Internal. docs/allocator_graphs.md
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "stillmap/allocators/engine/arena.h"

namespace stillmap {

// Threads: externally synchronised.
class private_pools {
 public:
  struct served {
    stream_ref stream;
    arena *outside = nullptr;  // serves the stream again after end_allocate_to_pool
  };
  struct pool {
    std::uint64_t id = 0;
    std::size_t holders = 1;        // reference count; 0: released
    std::vector<arena *> arenas;    // one for each stream that it ever served
    std::vector<served> capturing;  // the streams it serves now
    std::vector<stream_use> uses;   // streams on which its graphs may still run
  };

  std::uint64_t make() {
    all_.emplace_back().id = ++last_;
    return last_;
  }
  // nullptr: there is no such pool, or it was released.
  pool *find(std::uint64_t id) {
    for (pool &p : all_) {
      if (p.id == id && p.holders != 0) return &p;
    }
    return nullptr;
  }
  // The pool that serves a stream now; nullptr: none.
  pool *serving(stream_ref s) {
    for (pool &p : all_) {
      for (const served &now : p.capturing) {
        if (now.stream == s) return &p;
      }
    }
    return nullptr;
  }
  // Calls act(use) for each use of a pool's memory on a stream.
  template <class Act>
  void each_use(Act act) {
    for (pool &p : all_) {
      for (stream_use &u : p.uses) act(u);
    }
  }
  // Calls gone(pool) for each released pool, and forgets those for which it returns true.
  template <class Gone>
  void each_released(Gone gone) {
    std::erase_if(all_, [&](pool &p) { return p.holders == 0 && gone(p); });
  }

 private:
  std::uint64_t last_ = 0;
  std::list<pool> all_;  // a list: pointers stay valid
};

}  // namespace stillmap
