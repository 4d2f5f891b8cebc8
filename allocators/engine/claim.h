// May the place where a request went before be taken again, and by which recalls? One scan answers it, for pages of
// the arena and for pages that are lent to others. Internal. docs/allocator_growth.md#lent-pages
#pragma once

#include <cstdint>
#include <vector>

#include "stillmap/allocators/engine/extent.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap {

class block_store;

// What a scan says of a place.
enum class availability : std::uint8_t {
  available,  // without a driver call: each part is free, cached, or aliased to such pages
  lent,       // but for pages that are lent
  in_use,
};

// Pages to be used at the address `alias` again, where they are still mapped, instead of at `owner`.
struct page_recall {
  std::uint64_t alias = 0, owner = 0, bytes = 0;
  block_store *in = nullptr;  // where they are now; nullptr: in the arena itself
  extent *at = nullptr;       // there, before any recall; lent pages: once they are set aside
};

// The blocks of other arenas, whose locks are held.
class other_blocks {
 public:
  // Of the arena that the address belongs to; nullptr: its pages may not move.
  virtual block_store *at(std::uint64_t address) const = 0;

 protected:
  ~other_blocks() = default;
};

// Threads: externally synchronised. May run out of host memory.
class claim {
 public:
  // `number`: no other arena has it.
  explicit claim(std::uint64_t number) : scans_(number << 40) {}

  // Whether a block from `begin` to `end` would need no driver call: recalls() has what must be recalled for it. With
  // `others`, lent pages can be recalled too. `first`: the extent at `begin`.
  availability examine(block_store &of, const extent *first, std::uint64_t begin, std::uint64_t end,
                       const other_blocks *others);
  // For the place of the latest examine().
  const std::vector<page_recall> &recalls() const { return recalls_; }
  // Takes that place. Requires: it is available, and was examined without `others`. Returns its live extent.
  extent *take(block_store &of, extent *first, std::uint64_t begin, std::uint64_t bytes);

 private:
  availability examine_aliased(block_store &of, std::uint64_t at, std::uint64_t last,
                               const virtual_range &place, const other_blocks *others);
  extent *perform_recalls(block_store &of, extent *first, std::uint64_t begin);

  std::uint64_t scans_;  // the last one, as shared_page::visited_by
  std::vector<page_recall> recalls_;
};

}  // namespace stillmap
