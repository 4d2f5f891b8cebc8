// The pages of one growth: taken from arenas, ordered after their last use, mapped, and unmapped where they were.
// And pages that were lent to other arenas, which return to where they are still mapped. Internal.
// docs/allocator_growth.md#aliased-addresses
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "stillmap/allocators/engine/heap.h"
#include "stillmap/allocators/engine/stream_tracker.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"

namespace stillmap {

// Whole free pages taken out of one arena.
struct taken_pages {
  arena *from = nullptr;
  std::vector<extent *> extents{};
  fence idle{};
  bool leaves_allocator = false;  // the pages return to the device
};

// The pages found for one growth.
struct page_supply {
  std::vector<taken_pages> moved;
  std::size_t moved_pages = 0;
  std::vector<page_ptr> created;
  // The host waits until moved pages are idle, instead of the stream: a graph cannot wait for
  // work outside of it, and is launched on any stream.
  bool ordered_by_host = false;
};

class page_mover {
 public:
  // `access`: who may access what is mapped.
  page_mover(heap &h, stream_tracker &streams, std::vector<access_grant> access)
      : heap_(h), streams_(streams), access_(std::move(access)) {}

  // ---- one growth ----

  // Whether another arena may take pages from this one, and would find any. Makes no driver call.
  bool gives_pages(arena &a) const;
  // Whether pages that leave for another arena stay mapped there: the arena may lend, and there are few arenas.
  bool lends(const arena &a) const STILLMAP_REQUIRES(growth);
  // Returns the pages taken. Those taken are in `supply`, also if the host has no memory for more of them.
  std::size_t take_free_pages(arena &victim, std::size_t pages, page_supply &supply)
      STILLMAP_REQUIRES(growth);
  // Orders later work on `a`'s stream behind the work queued on the streams that used the pages last.
  // With ordered_by_host the host waits instead.
  status order_after_last_use(arena &a, page_supply &supply) STILLMAP_REQUIRES(growth);
  // The host memory for release_old_mappings, which comes after the last step that can fail. May run out.
  void expect_release(arena &a, page_supply &supply) STILLMAP_REQUIRES(growth);
  // Maps moved pages at their new addresses before their old mappings are undone, so nothing waits.
  status map(const extent_map::carved_extent &place, page_supply &supply) STILLMAP_REQUIRES(growth);
  // Instead of mapping them.
  static void put_back(page_supply &supply) noexcept STILLMAP_REQUIRES(growth);
  // After mapping them.
  void release_old_mappings(arena &a, const extent_map::carved_extent &place, page_supply &supply)
      STILLMAP_REQUIRES(growth);

  // ---- aliases ----

  // Before pages leave an arena they must be mapped at one address only. False: no event could be
  // recorded, and nothing changed. May run out, and then changes nothing.
  bool drop_aliases(arena &a) STILLMAP_REQUIRES(growth);
  // Where they fragment the free addresses.
  void drop_aliases_if_many(arena &a) STILLMAP_REQUIRES(growth);

  // ---- lent pages ----

  // Returns lent pages to the remembered place of the request, if they can return there, behind the work
  // that used them. nullptr: there is none before one that needs no such pages. May run out.
  void *allocate_at_lent(arena &a, const block_request &r) STILLMAP_REQUIRES(growth);

 private:
  void give_up(const std::vector<extent *> &extents, const fence &idle) STILLMAP_REQUIRES(growth);
  std::vector<page_recall> take_lent(arena &a, const block_request &r) STILLMAP_REQUIRES(growth);
  void return_lent(arena &a, const block_request &r) STILLMAP_REQUIRES(growth);

  heap &heap_;
  stream_tracker &streams_;
  const std::vector<access_grant> access_;
};

}  // namespace stillmap
