// Memory layouts: ranges, pages, mappings and access rights, without contents. A layout is enough
// to map the same pages at the same addresses in another process. docs/handoff.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/published_reference.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/device.h"

namespace stillmap::checkpoint {

struct memory_layout {
  // The id, in locations, of the device that holds the memory, whatever its ordinal in a process.
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
    std::uint32_t page = 0;    // index in `pages`
    std::uint32_t access = 0;  // index in `access`
    bool operator==(const place &) const = default;
  };
  std::vector<block> blocks;  // in address order, as are places
  std::vector<page> pages;    // in order of their first place
  std::vector<place> places;
  std::vector<std::vector<access_grant>> access;  // each distinct list once
  // Blocks that are not part of it: who restores the layout attaches them. In address order.
  std::vector<published_reference> published;

  std::size_t bytes() const;                                      // of all pages, each once
  std::vector<virtual_range> tagged(std::string_view tag) const;  // whole blocks
  std::size_t mapped_bytes(virtual_range within) const;
};

// A layout and the pages that are mapped there now.
struct described_memory {
  memory_layout layout;
  std::vector<page_ptr> pages;
  std::vector<virtual_range> runs;  // of adjacent places, each inside one block
};

// The number of references to a page that its mappings do not account for. A caller that holds
// pages of the tags itself passes this.
using extra_references = std::function<long(const page_ptr &)>;

// What is done with blocks that another process published.
enum class published_memory_is { referred_to, copied };

// What is done where other devices may access the memory: a layout has the rights of its own device only.
enum class peer_access_is { refused, left_out };

// Describes all blocks of these tags, also those with nothing mapped. Waits first for mappings of
// these blocks that are retiring. Of published blocks, `layout.published` has references, unless they are copied.
// Errors:  invalid_argument (no block has one of these tags), busy (a page is also used outside of
//          these tags, or some of the memory is suspended: value = the address), not_supported
//          (memory of another process that is not published, or of which this process has private copies of some
//          pages; memory that other devices can access, where that is refused: value = the address; a
//          device without VMM), the driver's.
// Threads: no page of the tags may be mapped or unmapped during the call.
// Cost:    none, unless something is retiring.
result<described_memory> describe(const device &d, std::span<const std::string> tags,
                                  const extra_references &extra = {},
                                  published_memory_is published = published_memory_is::referred_to,
                                  peer_access_is peers = peer_access_is::refused);

// Unmaps the pages from all their places for good: the places are released (mapping_state).
// Requires: no device work uses them.
// Ensures:  failure: nothing changed.
// Errors:   the driver's.
// Cost:     one unmap a run, one release a page without another reference.
status detach_pages(const device &d, const described_memory &memory);

// For each page, one of its places that the device may read.
// Errors: not_supported (a page has none: value = one of its addresses).
result<std::vector<device_address>> readable_addresses(const memory_layout &l);

// Checks that a layout is consistent, for a device with pages of this granularity: nothing
// overlaps, everything is aligned and inside its block, every index is valid, every page is used.
// Errors: corrupt (value = the invalid address, size or index).
status check(const memory_layout &l, std::size_t granularity);

}  // namespace stillmap::checkpoint
