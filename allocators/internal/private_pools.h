// Which private pools there are, who holds them, and which streams they serve now. Bookkeeping
// only: allocator_core gives them arenas, and keeps others away from their pages.
// Internal. docs/allocator.md#private-pools
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "stillmap/allocators/internal/arena.h"

namespace stillmap {

// Threads: externally synchronised.
class private_pools {
 public:
  struct served {
    stream_ref stream;
    arena *outside = nullptr;  // what serves the stream again afterwards
  };
  struct pool {
    std::uint64_t id = 0;
    std::size_t holders = 1;              // none: released, and on its way
    std::vector<arena *> arenas;          // one for each stream that it ever served
    std::vector<served> capturing;        // now
    std::vector<arena::stream_use> uses;  // where its graphs were launched, that may not be past

    void add_use(stream_ref s) {
      const auto same = [&](const arena::stream_use &u) { return u.stream == s; };
      if (std::none_of(uses.begin(), uses.end(), same)) uses.push_back({s, {}, false});
    }
  };

  std::uint64_t make() {
    all_.emplace_back().id = ++last_;
    return last_;
  }
  // nullptr: there is none, or it was released.
  pool *find(std::uint64_t id) {
    for (pool &p : all_) {
      if (p.id == id && p.holders != 0) return &p;
    }
    return nullptr;
  }
  // The pool that serves a stream now.
  pool *serving(stream_ref s) {
    for (pool &p : all_) {
      for (const served &now : p.capturing) {
        if (now.stream == s) return &p;
      }
    }
    return nullptr;
  }
  // gone(pool): it was released, and its pages may go; forgotten where that is so.
  template <class Gone>
  void each_released(Gone gone) {
    std::erase_if(all_, [&](pool &p) { return p.holders == 0 && gone(p); });
  }

 private:
  std::uint64_t last_ = 0;
  std::list<pool> all_;  // they stay where they are while others go
};

}  // namespace stillmap
