// Digests: XXH3-128 against accidents, SHA-256 against people. docs/image_format.md#digests
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stillmap::image {

// What the file is made of: all parts begin at multiples of it.
inline constexpr std::size_t block_bytes = 4096;

using bytes_view = std::span<const std::byte>;

// Bytes that name or prove something. `N` of them, compared in order.
template <std::size_t N, class Tag>
struct fixed_bytes {
  std::array<std::byte, N> bytes{};

  bool is_zero() const { return *this == fixed_bytes{}; }
  std::string text() const {  // in hexadecimal
    static constexpr char digits[] = "0123456789abcdef";
    std::string t;
    for (const std::byte b : bytes) {
      t += digits[std::to_integer<unsigned>(b) >> 4];
      t += digits[std::to_integer<unsigned>(b) & 15];
    }
    return t;
  }
  auto operator<=>(const fixed_bytes &) const = default;
};

using image_id = fixed_bytes<16, struct image_id_tag>;  // random: an image, or a set
using digest = fixed_bytes<16, struct digest_tag>;      // XXH3-128, in canonical (big-endian) form
using sha256 = fixed_bytes<32, struct sha256_tag>;

// Cost: about as long as it takes to read the bytes from memory.
digest digest_of(bytes_view bytes);
// The digest of a chunk's contents: of the digests of its blocks, so that a device can compute it
// in parallel. Requires: bytes is a multiple of block_bytes.
digest digest_of_contents(bytes_view contents);
// Of that many zeros; computed once for each length that repeats.
digest digest_of_zeros(std::size_t bytes);

struct both_digests {
  digest contents;  // digest_of_contents
  digest stored;    // digest_of
};
// Both of the same bytes, which are read once.
both_digests digests_of(bytes_view contents);

bool all_zero(bytes_view bytes);

sha256 sha256_of(bytes_view bytes);

}  // namespace stillmap::image
