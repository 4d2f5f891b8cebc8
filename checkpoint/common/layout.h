// What memory is where, without its contents: enough to make the same addresses show the same pages
// in another process. Made from the ledger for a list of tags. docs/design.md#handoff
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/device.h"

namespace stillmap::checkpoint {

struct memory_layout {
  // In locations: the device that the memory belongs to, whatever number a process knows it by.
  static constexpr int own_device = -1;

  struct block {
    virtual_range range;
    std::string tag;
    std::uint64_t generation = 0;
  };
  struct page {
    std::size_t bytes = 0;
    physical_properties properties;
  };
  struct place {
    device_address at;
    std::uint32_t page = 0;    // of `pages`
    std::uint32_t access = 0;  // of `access`
  };
  std::vector<block> blocks;  // in address order, as are places
  std::vector<page> pages;    // in order of their first place
  std::vector<place> places;
  std::vector<std::vector<access_grant>> access;  // each list once

  std::size_t bytes() const;                                      // of all pages, each once
  std::vector<virtual_range> tagged(std::string_view tag) const;  // whole blocks
  std::size_t mapped_bytes(virtual_range within) const;
};

// A layout and the pages that are behind it now.
struct described_memory {
  memory_layout layout;
  std::vector<page_ptr> pages;
  std::vector<virtual_range> runs;  // of adjacent places within one block
};

// How many hold a page beside its places: whoever keeps pages of these tags themselves says so.
using other_holders = std::function<long(const page_ptr &)>;

// Blocks of these tags, also those with nothing mapped.
// Waits for what retires in them, so that no page is on its way out.
// Errors:  invalid_argument (nothing has one of these tags), busy (a page is used outside of these
//          tags as well: value = its address; or some of it is suspended: value), not_supported
//          (another process's memory, memory that other devices use too: value = the address; a
//          device without VMM), the driver's.
// Threads: none of the memory may change its pages meanwhile.
// Cost:    none, unless something retires.
result<described_memory> describe(const device &d, std::span<const std::string> tags,
                                  const other_holders &holders = {});

// Takes the pages away from all their places, which stay their owners' with nothing behind them: as
// suspended, without a way back. Requires: nothing uses them. Errors: the driver's; then all is as
// before. Cost: one unmap a run, one release a page that nobody else holds.
status take_away(const device &d, const described_memory &what);

// For each page, one of its places at which the device may read.
// Errors: not_supported (there is none: value = a place of it).
result<std::vector<device_address>> readable_at(const memory_layout &l);

// Whether it could be one of a device with pages of this granularity: nothing overlaps, everything
// is aligned and inside, every index is one, every page is used.
// Errors: corrupt (value = the address or index that is wrong).
status check(const memory_layout &l, std::size_t granularity);

}  // namespace stillmap::checkpoint
