// What is said of each chunk, and the checks of it. docs/image_format.md#chunk-records
#pragma once

#include <span>
#include <vector>

#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/image/failure.h"
#include "stillmap/checkpoint/image/superblock.h"

namespace stillmap::image {

enum class chunk_kind : std::uint8_t {
  zero = 0,    // all bytes are
  raw = 1,     // the bytes
  lz4 = 2,     // an lz4 block
  zstd = 3,    // a zstd frame
  same = 4,    // as an earlier record of this table
  parent = 5,  // as a record of the parent's table
};

struct chunk_record {
  std::uint64_t at = 0;      // in the contents
  std::uint32_t bytes = 0;   // of contents
  std::uint32_t stored = 0;  // bytes in the file; 0: none
  std::uint64_t where = 0;   // the extent's offset; or a record's number, by kind
  chunk_kind kind = chunk_kind::zero;
  digest contents;      // digest_of_contents
  digest stored_bytes;  // digest_of what is stored; zero without

  bool is_stored() const {
    return kind == chunk_kind::raw || kind == chunk_kind::lz4 || kind == chunk_kind::zstd;
  }
  file_range extent() const { return {where, stored}; }
  bool operator==(const chunk_record &) const = default;
};

// Where chunks begin and end, which follows from the pages: none crosses a page.
// Requires: every page is a multiple of block_bytes and not empty, their sum has no overflow.
std::vector<chunk_record> lay_out(std::span<const std::uint64_t> page_bytes,
                                  std::uint32_t chunk_bytes);

std::vector<std::byte> encode(std::span<const chunk_record> table);
// Checks each record by itself, save for what needs the rest of the image.
// Requires: bytes.size() is a multiple of record_bytes. Errors: corrupt.
outcome<std::vector<chunk_record>> decode_chunk_table(bytes_view bytes, const superblock &s);

// That the chunks are those of the pages, in order, and complete. Errors: corrupt.
done check_layout(std::span<const chunk_record> table, std::span<const std::uint64_t> page_bytes,
                  const superblock &s);
// That extents lie side by side from the first block up to the table. Errors: corrupt.
done check_extents(std::span<const chunk_record> table, const superblock &s);
// That references of kind `same` go to earlier stored records, with the same bytes and digest.
done check_references(std::span<const chunk_record> table, const superblock &s);
// That references of kind `parent` go to records there are, with the same bytes and digest.
done check_parent_references(std::span<const chunk_record> table, const superblock &s,
                             std::span<const chunk_record> parent);

}  // namespace stillmap::image
