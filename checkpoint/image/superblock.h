// The first block of an image: identity, sizes, and the positions of all other parts.
// docs/image_format.md#superblock
#pragma once

#include <array>

#include "stillmap/checkpoint/base/fixed_bytes.h"
#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::image {

inline constexpr std::uint64_t flag_encrypted = 1;
inline constexpr std::uint64_t flag_signed = 2;
inline constexpr std::uint64_t flag_incremental = 4;

inline constexpr std::uint64_t tag_bytes = 16;        // AES-GCM tag after each encrypted part
inline constexpr std::uint64_t signature_bytes = 96;  // public key and signature
inline constexpr std::uint64_t record_bytes = 64;     // of a chunk
inline constexpr std::uint64_t key_bytes = 32;        // of digests, after the records
inline constexpr std::uint64_t seal_bytes = 32;
inline constexpr std::uint64_t max_manifest_bytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t max_file_bytes = std::uint64_t{1} << 56;
inline constexpr std::uint32_t min_chunk_bytes = 64 << 10;
inline constexpr std::uint32_t max_chunk_bytes = 64 << 20;
inline constexpr std::uint32_t default_chunk_bytes = 2 << 20;
inline constexpr std::uint32_t max_images_in_set = 4096;

// A range of bytes of the file.
struct file_range {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t end() const { return offset + bytes; }
  bool operator==(const file_range &) const = default;
};

struct superblock {
  std::uint32_t minor = 0;
  std::uint64_t flags = 0;
  std::uint64_t file_bytes = 0;
  image_id image;
  image_id set;
  image_id parent;
  sha256 parent_root;
  std::uint64_t time = 0;  // ns since 1970 UTC
  std::uint32_t chunk_bytes = default_chunk_bytes;
  std::uint32_t set_images = 1;
  std::uint32_t set_index = 0;
  std::uint64_t contents_bytes = 0;
  std::uint64_t chunks = 0;
  file_range chunk_table;
  file_range manifest;
  file_range seals;      // zero unless signed
  file_range signature;  // zero unless signed
  sha256 chunk_table_sum;
  sha256 manifest_sum;
  sha256 seals_sum;  // zero unless signed
  // By the image's key, of everything before it; zero unless encrypted.
  checkpoint::fixed_bytes<tag_bytes, struct superblock_tag_tag> authentication;
  sha256 root;  // of all fields above; set by encode, checked by decode

  bool encrypted() const { return (flags & flag_encrypted) != 0; }
  bool is_signed() const { return (flags & flag_signed) != 0; }
  bool incremental() const { return (flags & flag_incremental) != 0; }
  // Bytes of the tag after each part: 0 unless encrypted.
  std::uint64_t tag() const { return encrypted() ? tag_bytes : 0; }

  bool operator==(const superblock &) const = default;
};

using superblock_bytes = std::array<std::byte, block_bytes>;
inline constexpr std::size_t authenticated_bytes = 4032;  // at the beginning of a superblock

// Encodes and sets `root`. Checks nothing.
superblock_bytes encode(superblock &s);

// Checks everything that does not need the rest of the file: digests, version, flags, reserved
// bytes, limits, and that the parts follow one another up to `file_bytes`.
// Requires: bytes.size() == block_bytes.
// Errors: corrupt, not_supported (a newer version, unknown flags).
result<superblock> decode_superblock(bytes_view bytes);

}  // namespace stillmap::image
