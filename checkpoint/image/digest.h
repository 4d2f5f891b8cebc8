// Digests: XXH3-128 detects accidental damage, SHA-256 deliberate changes.
// docs/image_format.md#digests
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stillmap::image {

// The file's block size: all parts begin at multiples of it.
inline constexpr std::size_t block_bytes = 4096;

using bytes_view = std::span<const std::byte>;

// N bytes of an id, a digest or a key, compared lexicographically.
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

using image_id = fixed_bytes<16, struct image_id_tag>;  // random; of an image or a set
using digest = fixed_bytes<16, struct digest_tag>;      // XXH3-128, in canonical (big-endian) form
using sha256 = fixed_bytes<32, struct sha256_tag>;

// Cost: about as long as it takes to read the bytes from memory.
digest digest_of(bytes_view bytes);
// The digest of a chunk's contents: the digest of the digests of its blocks, which a device can
// compute in parallel. Requires: the size is a multiple of block_bytes.
digest digest_of_contents(bytes_view contents);
// digest_of_contents of that many zeros. The last result of each thread is cached.
digest digest_of_zeros(std::size_t bytes);

struct both_digests {
  digest contents;  // digest_of_contents
  digest stored;    // digest_of
};
// Both digests of the same bytes, which are read once.
both_digests digests_of(bytes_view contents);

bool all_zero(bytes_view bytes);

sha256 sha256_of(bytes_view bytes);

}  // namespace stillmap::image
