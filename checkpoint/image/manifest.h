// What an image says about its contents: which pages there were, where each was mapped, and for
// whom. docs/image_format.md#manifest
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/checkpoint/image/failure.h"
#include "stillmap/vmm/driver_types.h"

namespace stillmap::image {

// Limits of what a manifest may hold; a reader takes no memory for more.
inline constexpr std::size_t most_pages = std::size_t{1} << 24;
inline constexpr std::size_t most_places = std::size_t{1} << 24;
inline constexpr std::size_t most_blocks = std::size_t{1} << 22;
inline constexpr std::size_t most_tags = 65'536;
inline constexpr std::size_t most_access_lists = 65'536;
inline constexpr std::size_t most_access_entries = std::size_t{1} << 20;  // of all lists together
inline constexpr std::size_t most_notes = 4'096;
inline constexpr std::size_t most_note_bytes = std::size_t{16} << 20;  // names and bytes, together
inline constexpr std::size_t most_tag_bytes = std::size_t{16} << 20;   // together

struct manifest {
  struct device_info {
    std::string name;
    std::array<std::byte, 16> uuid{};
    std::uint64_t memory_bytes = 0;
    std::uint64_t granularity = 0;  // of pages, bytes
    std::uint32_t driver_version = 0;
    bool operator==(const device_info &) const = default;
  };
  // Reserved addresses. In address order, none overlapping.
  struct block {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    std::uint64_t generation = 0;
    std::uint32_t tag = 0;  // in tags
    bool operator==(const block &) const = default;
  };
  // Numbered by position: in the order of their lowest address.
  struct page {
    std::uint64_t bytes = 0;
    memory_location where;
    handle_type exportable = handle_type::none;
    bool rdma = false;
    bool operator==(const page &) const = default;
  };
  // A page at an address. In address order, none overlapping, each within one block.
  struct place {
    std::uint64_t address = 0;
    std::uint32_t page = 0;    // in pages
    std::uint32_t access = 0;  // in access_lists
    bool operator==(const place &) const = default;
  };
  struct note {  // the application's own
    std::string name;
    std::vector<std::byte> bytes;
    bool operator==(const note &) const = default;
  };

  device_info device;
  std::vector<std::string> tags;
  std::vector<block> blocks;
  std::vector<page> pages;
  std::vector<std::vector<access_grant>> access_lists;  // said once for all places that have it
  std::vector<place> places;
  std::vector<note> notes;

  bool operator==(const manifest &) const = default;

  std::vector<std::uint64_t> page_bytes() const;
  // The lowest address of each page, by page. Requires: check() passed.
  std::vector<std::uint64_t> lowest_addresses() const;
};

// That a manifest does not contradict itself and keeps to the limits.
// Errors: corrupt, with `found` and `expected`; the offset is 0. Cost: once through it.
done check(const manifest &m);

// As FlatBuffers. Requires: check(m) passed. Errors: invalid_argument (over largest_manifest).
outcome<std::vector<std::byte>> encode(const manifest &m);

// Verifies the encoding, then reads, then checks.
// Errors: corrupt; out_of_memory.
outcome<manifest> decode_manifest(const std::byte *bytes, std::size_t size);

}  // namespace stillmap::image
