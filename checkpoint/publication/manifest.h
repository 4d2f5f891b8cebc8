// What is published under a name, without the pages. docs/publication.md#manifest
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/image/digest.h"

namespace stillmap::publication {

// Limits of what a manifest may contain.
inline constexpr std::size_t max_name_bytes = 255;
inline constexpr std::size_t max_metadata_bytes = std::size_t{64} << 20;

struct manifest {
  std::string name;
  std::array<unsigned char, 16> device{};  // UUID
  std::uint64_t page_bytes = 0;            // the device's granularity
  checkpoint::memory_layout layout;
  std::vector<std::byte> metadata;  // the publisher's own, for its readers
  // Of chunks of `chunk_bytes` (the last of a page may be shorter), page by page, under this key; none
  // where the publisher made none.
  std::uint64_t chunk_bytes = 0;
  image::digest_key key;
  std::vector<image::digest> digests;

  // SHA-256 of all of it, digests included: equal ids mean equal contents. Zero without digests.
  image::sha256 id() const;
};

// How checkpoints refer to its blocks, which are mapped as `l` says. None without digests: there is no id then.
std::vector<checkpoint::published_reference> references_to(const manifest &m,
                                                           const checkpoint::memory_layout &l);

// Errors: invalid_argument (empty, too long: limit; or a control character in it).
status check_name(const std::string &name);

std::vector<std::byte> encode(const manifest &m);
// Checks each field, and the layout.
// Errors: corrupt.
result<manifest> decode_manifest(std::span<const std::byte> from);

}  // namespace stillmap::publication
