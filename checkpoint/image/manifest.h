// The manifest of an image: its pages, their addresses, access rights and tags, without contents.
// docs/image_format.md#manifest
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/vmm/base/driver_types.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::image {

// Limits of a manifest. A reader allocates no memory for more.
inline constexpr std::size_t max_pages = std::size_t{1} << 24;
inline constexpr std::size_t max_places = std::size_t{1} << 24;
inline constexpr std::size_t max_blocks = std::size_t{1} << 22;
inline constexpr std::size_t max_tags = 65'536;
inline constexpr std::size_t max_access_lists = 65'536;
inline constexpr std::size_t max_access_entries = std::size_t{1} << 20;  // of all lists
inline constexpr std::size_t max_notes = 4'096;
// Names and bytes of all notes.
inline constexpr std::size_t max_note_bytes = std::size_t{16} << 20;
inline constexpr std::size_t max_tag_bytes = std::size_t{16} << 20;  // of all tags

struct manifest {
  struct device_info {
    std::string name;
    std::array<std::byte, 16> uuid{};
    std::uint64_t memory_bytes = 0;
    std::uint64_t granularity = 0;  // of pages, bytes
    std::uint32_t driver_version = 0;
    bool operator==(const device_info &) const = default;
  };
  // A reserved address range. Ordered by address, without overlap.
  struct block {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    std::uint64_t generation = 0;
    std::uint32_t tag = 0;  // in tags
    bool operator==(const block &) const = default;
  };
  // Ordered by their lowest address; other parts refer to a page by its index.
  struct page {
    std::uint64_t bytes = 0;
    memory_location where;
    handle_type exportable = handle_type::none;
    bool rdma = false;
    bool operator==(const page &) const = default;
  };
  // A mapping of a page. Ordered by address, without overlap, each inside one block.
  struct place {
    std::uint64_t address = 0;
    std::uint32_t page = 0;    // in pages
    std::uint32_t access = 0;  // in access_lists
    bool operator==(const place &) const = default;
  };
  struct note {  // data of the application
    std::string name;
    std::vector<std::byte> bytes;
    bool operator==(const note &) const = default;
  };

  device_info device;
  std::vector<std::string> tags;
  std::vector<block> blocks;
  std::vector<page> pages;
  std::vector<std::vector<access_grant>> access_lists;  // shared by all places with equal rights
  std::vector<place> places;
  std::vector<note> notes;

  bool operator==(const manifest &) const = default;

  std::vector<std::uint64_t> page_bytes() const;
  // The lowest address of each page, by page. Requires: check() passed.
  std::vector<std::uint64_t> lowest_addresses() const;
};

// Checks that a manifest does not contradict itself and keeps the limits.
// Errors: corrupt, with `found` and `expected`. Cost: linear in its size.
status check(const manifest &m);

// Encodes as FlatBuffers.
// Requires: check(m) passed.
// Errors:   invalid_argument (larger than max_manifest_bytes).
result<std::vector<std::byte>> encode(const manifest &m);

// Verifies the encoding, decodes, and checks.
// Errors: corrupt, out_of_memory.
result<manifest> decode_manifest(const std::byte *bytes, std::size_t size);

}  // namespace stillmap::image
