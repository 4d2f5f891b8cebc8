// Growth and release by cuMemAlloc, where the device cannot map pages. A chunk keeps its address, belongs to one
// stream, and is freed as a whole. Internal. docs/allocator_growth.md#where-pages-cannot-be-mapped
#pragma once

#include <cstddef>
#include <vector>

#include "stillmap/allocators/engine/heap.h"
#include "stillmap/allocators/engine/memory_source.h"
#include "stillmap/allocators/engine/reclaimer.h"
#include "stillmap/allocators/engine/stream_tracker.h"

namespace stillmap {

class chunk_source final : public memory_source {
 public:
  chunk_source(heap &h, stream_tracker &streams, reclaimer &r)
      : heap_(h), streams_(streams), reclaimer_(r) {}

  result<extent *> extend(arena &a, const block_request &r, effort level) override
      STILLMAP_REQUIRES(growth);
  // Chunks do not move.
  void *allocate_at_lent(arena & /*a*/, const block_request & /*r*/) override
      STILLMAP_REQUIRES(growth) {
    return nullptr;
  }
  std::size_t missing_bytes() const override STILLMAP_REQUIRES(growth) { return missing_; }
  void free_addresses() override STILLMAP_REQUIRES(growth) {}
  result<release_report> trim(std::size_t keep) override STILLMAP_REQUIRES(growth);
  std::size_t releasable_bytes(arena &a) override STILLMAP_REQUIRES(growth);
  void release_all() noexcept override STILLMAP_REQUIRES(growth);
  std::size_t created_ahead() const override { return 0; }

 private:
  // Memory that one driver call allocated and one call frees.
  struct chunk {
    virtual_range range;      // whole pages, one range of its arena's extent map
    virtual_range allocated;  // as the driver returned it; contains range
  };

  // May run out of host memory.
  std::vector<chunk> &chunks_of(const arena &a) STILLMAP_REQUIRES(growth) {
    if (chunks_.size() < a.id) chunks_.resize(a.id);
    return chunks_[a.id - 1];
  }
  void add(arena &a, const chunk &c, address_zone zone) STILLMAP_REQUIRES(growth, a.lock());
  static bool is_unused(arena &a, const chunk &c) STILLMAP_REQUIRES(growth, a.lock());
  // Sets unused chunks aside: as few as make up `bytes`, or all. May run out.
  std::vector<chunk> take(arena &a, std::size_t bytes) STILLMAP_REQUIRES(growth);
  result<chunk> allocate_chunk(std::size_t bytes) STILLMAP_REQUIRES(growth);
  void undo_chunk(const chunk &c) noexcept STILLMAP_REQUIRES(growth);
  status free_chunk(arena &a, const chunk &c) STILLMAP_REQUIRES(growth);
  std::size_t release_chunks(std::size_t bytes, bool wait, status &outcome)
      STILLMAP_REQUIRES(growth);
  std::size_t release_chunks_of(arena &a, std::size_t bytes, status &outcome)
      STILLMAP_REQUIRES(growth);
  void release_grant(std::size_t bytes) const noexcept;

  heap &heap_;
  stream_tracker &streams_;
  reclaimer &reclaimer_;
  std::vector<std::vector<chunk>> chunks_ STILLMAP_GUARDED_BY(growth);  // of arena i + 1
  std::size_t chunk_bytes_ STILLMAP_GUARDED_BY(growth) = 0;             // bytes of all chunks
  std::size_t missing_ STILLMAP_GUARDED_BY(growth) = 0;
};

}  // namespace stillmap
