// Cached blocks or sequences of an arena that go when others of a quota ask for memory. docs/kv_arena.md#under-a-quota
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/allocators/kv/sequence_arena.h"
#include "stillmap/vmm/memory_quota.h"

namespace stillmap::kv {

// Others ask the quota on any thread, and an arena is its engine's. So what they ask for is only noted; the engine looks
// between two steps, and gives.
// Waits:   nobody waits for the engine longer than for its own deadline (memory_quota::make_room), which then says that
//          this process holds the memory in use. An engine that never gives is that, and no error here.
// Changes: give() asks the quota what is asked for now. Nothing is evicted for one that waits no more, or for less.
// Order:   free pages and free blocks (reclaim_kind::cached) before cached blocks (reclaim_kind::evictable), of which the
//          quota asks only those whose turn it is. Used blocks stay.
// Threads: wanted() is safe; give() is externally synchronised, as the arena is.
class cache_offer {
 public:
  // Requires: the arena that is given to give() has a pool with this quota, so that its bytes return there.
  // Errors:   invalid_argument (no quota), not_supported (this quota asks nobody), out_of_memory (of the host).
  static result<std::unique_ptr<cache_offer>> create(std::shared_ptr<memory_quota> quota);
  // Those that ask hear that there is nothing. Waits for a call of a reclaimer, which waits for nothing.
  ~cache_offer();
  cache_offer(const cache_offer &) = delete;
  cache_offer &operator=(const cache_offer &) = delete;

  // Bytes that others have asked for since the last give(). Cost: two loads of atomics.
  std::uint64_t wanted() const noexcept;
  // Gives what is asked for now, with block_arena::give_back(): leaves `keep` free blocks for the coming step. Tells those
  // that asked how much it was, also if it was nothing. Between begin_step() and prepare(). Returns the bytes released.
  // Ensures: failure: `evicted` names what was evicted; those that asked still wait, and wanted() says so.
  // Errors:  those of block_arena::give_back and of the quota.
  // Cost:    six system calls of a shared_quota; where somebody asks, those of give_back().
  result<std::size_t> give(block_arena &arena, std::size_t keep, std::vector<block_id> &evicted);
  // The same of sequences, with sequence_arena::give_back(): those of `cached` go in this order.
  // Ensures: failure: `removed` names what was removed; those that asked still wait, and wanted() says so.
  // Errors:  those of sequence_arena::give_back and of the quota.
  result<std::size_t> give(sequence_arena &arena, std::span<const sequence_id> cached,
                           std::vector<sequence_id> &removed);

 private:
  class requests;
  cache_offer(std::shared_ptr<memory_quota> quota, std::shared_ptr<requests> r);
  template <class Give>
  result<std::size_t> answer(const Give &give);

  const std::shared_ptr<memory_quota> quota_;
  const std::shared_ptr<requests> requests_;
  std::unique_ptr<reclaimer_registration> cached_, evictable_;
};

}  // namespace stillmap::kv
