// The records of the chunk table, their encoding and their checks.
// docs/image_format.md#chunk-records
#pragma once

#include <span>
#include <vector>

#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/image/superblock.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::image {

enum class chunk_kind : std::uint8_t {
  zero = 0,    // all bytes are zero
  raw = 1,     // the bytes as they are
  lz4 = 2,     // an lz4 block
  zstd = 3,    // a zstd frame
  same = 4,    // equal to an earlier record of this table
  parent = 5,  // equal to a record of the parent's table
};

struct chunk_record {
  std::uint64_t at = 0;      // offset in the contents
  std::uint32_t bytes = 0;   // of contents
  std::uint32_t stored = 0;  // bytes in the file; 0: none
  std::uint64_t where = 0;   // file offset of the extent, or a record's number; by kind
  chunk_kind kind = chunk_kind::zero;
  digest contents;      // digest_of_contents; zero for a chunk of zeros
  digest stored_bytes;  // digest_of the stored bytes; zero if none

  bool is_stored() const {
    return kind == chunk_kind::raw || kind == chunk_kind::lz4 || kind == chunk_kind::zstd;
  }
  file_range extent() const { return {where, stored}; }
  bool operator==(const chunk_record &) const = default;
};

// Divides pages into chunks; no chunk crosses a page.
// Requires: every page is a multiple of block_bytes and not empty; their sum does not overflow.
std::vector<chunk_record> lay_out(std::span<const std::uint64_t> page_bytes,
                                  std::uint32_t chunk_bytes);

std::vector<std::byte> encode(std::span<const chunk_record> table, const digest_key &key);

struct decoded_chunk_table {
  std::vector<chunk_record> records;
  digest_key key;
};
// Decodes the table and checks each record by itself.
// Requires: bytes.size() is that of s.chunks records and a key. Errors: corrupt.
result<decoded_chunk_table> decode_chunk_table(bytes_view bytes, const superblock &s);

// Check a decoded table. Errors: corrupt.
// The chunks are those of the pages, in order and complete.
status check_layout(std::span<const chunk_record> table, std::span<const std::uint64_t> page_bytes,
                    const superblock &s);
// The extents fill the file from the first block up to the table, without gap or overlap.
status check_extents(std::span<const chunk_record> table, const superblock &s);
// References of kind `same` lead to earlier stored records of the same size and digest.
status check_references(std::span<const chunk_record> table, const superblock &s);
// References of kind `parent` lead to records of `parent` of the same size and digest.
status check_parent_references(std::span<const chunk_record> table, const superblock &s,
                               std::span<const chunk_record> parent);

}  // namespace stillmap::image
