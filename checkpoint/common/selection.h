// The memory of one tag, as the ledger records it: each page once, and every address at which it is
// mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::checkpoint {

// An address range that one call can copy, and the offset of its bytes in the saved contents.
struct piece {
  virtual_range range;
  std::size_t offset = 0;
};

struct selection {
  struct place {
    device_address at;
    std::size_t page;  // index in `pages`
  };
  struct selected_page {
    std::size_t bytes = 0;
    std::shared_ptr<page_pool> pool;  // creates pages of the same kind
    std::size_t offset = 0;           // in the saved contents
  };
  std::vector<place> places;         // in address order
  std::vector<selected_page> pages;  // in order of their first place
  std::size_t bytes = 0;             // of all pages, each once

  // Runs of adjacent places, each inside one reservation: one unmap call each.
  std::vector<virtual_range> ranges;
  // Pieces that cover every page once.
  std::vector<piece> contents;
};

// Selects all mapped memory of the tag; waits first for mappings of these blocks that are retiring.
// With `imports`, memory of other processes is included.
// Errors:  invalid_argument (no mapped memory has this tag), busy (a page is also used outside of
//          the tag: value = its address; or all of the memory is suspended), not_supported (memory
//          of another process: value = its address; a device without VMM), the driver's.
// Threads: no page of the tag may be mapped or unmapped during the call.
// Cost:    none, unless something is retiring.
result<selection> select(const device &d, std::string_view tag, bool imports = false);

// A new id for remap_plan::suspend, unique in this process: all suspenders share the ledger.
std::uint64_t next_suspension_id();

// Appends a range: extends the last one where both are adjacent and `same_block`. CUDA does not
// guarantee that one call may span two reservations, so `same_block` must be false between them.
// Pieces must also be adjacent in the saved contents.
void extend(std::vector<virtual_range> &runs, virtual_range by, bool same_block);
void extend(std::vector<piece> &pieces, piece by, bool same_block);

}  // namespace stillmap::checkpoint
