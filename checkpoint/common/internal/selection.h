// What a tag covers: the memory that is mapped in all blocks of that name, as the ledger has it.
// Each page once, and every address that it is mapped at. docs/design.md#checkpoint
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

// A stretch of addresses that can be copied in one call, and where its bytes are among those saved.
struct piece {
  virtual_range range;
  std::size_t offset = 0;
};

struct selection {
  struct place {
    device_address at;
    std::size_t page;  // of `pages`
  };
  struct selected_page {
    std::size_t bytes = 0;
    std::shared_ptr<page_pool> home;  // where another of its kind comes from
    std::size_t offset = 0;           // of its bytes among those saved
  };
  std::vector<place> places;         // in address order
  std::vector<selected_page> pages;  // in order of their first place
  std::size_t bytes = 0;             // of all pages

  // Adjacent places within one block, for one driver call each.
  std::vector<virtual_range> ranges;
  // What to copy so that every page is copied once.
  std::vector<piece> contents;
};

// Waits for what retires in those blocks, so that no page of theirs is on its way out.
// Errors: invalid_argument (nothing that is mapped has this tag), busy (a page is used by somebody
//         else too: value = the address; or all of it is suspended), not_supported (another
//         process's memory: value = the address; a device without VMM), the driver's.
// Threads: as the owners of the memory allow: none of it may change meanwhile.
// Cost:    none, unless something retires.
// `imports`: memory of other processes is taken too; what comes back for it is not theirs any more.
result<selection> select(const device &d, std::string_view tag, bool imports = false);

// A number for remap_plan::suspend that nobody else has: the ledger is everybody's.
std::uint64_t next_suspension();

// Adds to the end of a list, where possible as more of what is last there. `same_block`: that one
// is in the same reservation; one driver call over two of them is nobody's promise.
void extend(std::vector<virtual_range> &runs, virtual_range by, bool same_block);
void extend(std::vector<piece> &pieces, piece by, bool same_block);

}  // namespace stillmap::checkpoint
