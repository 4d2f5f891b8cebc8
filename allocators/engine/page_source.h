// Memory of pages: addresses that lack the fewest, pages that the device creates or that other arenas have free.
// Internal. docs/allocator_growth.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "stillmap/allocators/engine/heap.h"
#include "stillmap/allocators/engine/memory_source.h"
#include "stillmap/allocators/engine/page_mover.h"
#include "stillmap/allocators/engine/reclaimer.h"
#include "stillmap/allocators/engine/stream_tracker.h"
#include "stillmap/allocators/engine/suspension_hold.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap {

class page_source final : public memory_source {
 public:
  page_source(heap &h, stream_tracker &streams, reclaimer &r, std::shared_ptr<page_pool> pages,
              std::vector<access_grant> access);

  result<extent *> extend(arena &a, const block_request &r, effort level) override
      STILLMAP_REQUIRES(growth);
  void *allocate_at_lent(arena &a, const block_request &r) override STILLMAP_REQUIRES(growth) {
    return mover_.allocate_at_lent(a, r);
  }
  std::size_t missing_bytes() const override STILLMAP_REQUIRES(growth) { return missing_; }
  void free_addresses() override STILLMAP_REQUIRES(growth);
  result<release_report> trim(std::size_t keep) override STILLMAP_REQUIRES(growth);
  std::size_t releasable_bytes(arena &a) override STILLMAP_REQUIRES(growth);
  void release_all() noexcept override STILLMAP_REQUIRES(growth);
  std::size_t created_ahead() const override { return pages_->stats().free.bytes(); }

 private:
  result<extent *> extend_once(arena &a, const block_request &r, effort level)
      STILLMAP_REQUIRES(growth);
  // addresses
  std::optional<extent_map::carved_extent> carve(arena &a, const block_request &r, effort level)
      STILLMAP_REQUIRES(growth);
  status reserve_addresses(arena &a, std::size_t bytes, address_zone zone)
      STILLMAP_REQUIRES(growth);
  void enter(arena &a, std::shared_ptr<address_block> block, address_zone zone)
      STILLMAP_REQUIRES(growth);
  // pages
  status collect_pages(arena &a, std::size_t pages, effort level, page_supply &supply)
      STILLMAP_REQUIRES(growth);
  status create(arena &a, std::size_t pages, page_supply &supply) STILLMAP_REQUIRES(growth);
  void create_ahead(std::size_t committed) STILLMAP_REQUIRES(growth);
  void keep_alive(const std::vector<page_ptr> &created) STILLMAP_REQUIRES(growth);
  void note_memory_state(std::size_t peak, bool exhausted) STILLMAP_REQUIRES(growth);
  void notify_grown(const arena &a, const extent_map::carved_extent &place,
                    const page_supply &supply) STILLMAP_REQUIRES(growth);
  status retire(arena &a, std::size_t pages, const std::vector<arena *> &aliased,
                std::size_t &bytes) STILLMAP_REQUIRES(growth);

  heap &heap_;
  stream_tracker &streams_;
  reclaimer &reclaimer_;
  page_mover mover_;
  const std::shared_ptr<page_pool> pages_;
  const std::shared_ptr<suspension_hold> hold_;
  std::vector<std::shared_ptr<address_block>> reservations_ STILLMAP_GUARDED_BY(growth);
  // For the next one.
  device_address next_hint_ STILLMAP_GUARDED_BY(growth);
  // Pools, other than pages_, that own pages of this allocator: they must outlive the pages.
  std::vector<std::shared_ptr<page_pool>> foreign_pools_ STILLMAP_GUARDED_BY(growth);
  // The ceiling when more pages than that were wanted last; 0: not since it was raised. And the bytes beyond
  // which the driver or a quota refused pages last.
  std::size_t exhausted_ceiling_ STILLMAP_GUARDED_BY(growth) = 0;
  std::size_t refused_beyond_ STILLMAP_GUARDED_BY(growth) = SIZE_MAX;
  std::size_t missing_ STILLMAP_GUARDED_BY(growth) = 0;
};

}  // namespace stillmap
