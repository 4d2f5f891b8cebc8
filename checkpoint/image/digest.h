// Digests: XXH3-128 detects accidental damage, Poly1305 under a secret key tells contents apart that
// somebody else chooses, SHA-256 detects deliberate changes. docs/image_format.md#digests
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stillmap/checkpoint/base/fixed_bytes.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::image {

// The file's block size: all parts begin at multiples of it.
inline constexpr std::size_t block_bytes = 4096;

using bytes_view = std::span<const std::byte>;

using image_id = checkpoint::fixed_bytes<16, struct image_id_tag>;  // random; of an image or a set
using digest =
    checkpoint::fixed_bytes<16, struct digest_tag>;  // XXH3-128 (big-endian), or Poly1305
using digest_key =
    checkpoint::fixed_bytes<32, struct digest_key_tag>;  // random; of the contents' digests
using sha256 = checkpoint::fixed_bytes<32, struct sha256_tag>;

// XXH3-128: detects accidents. Cost: about as long as it takes to read the bytes from memory.
digest digest_of(bytes_view bytes);

// Errors:  those of the system's random source.
// Threads: safe.
result<digest_key> make_digest_key();
// The digest of a chunk's contents: Poly1305, which a device can compute in parallel. Who chooses
// two chunks of up to 64 MiB without knowing the key, or digests under it, makes them equal with a
// probability of at most 2^-81 (D. J. Bernstein, "The Poly1305-AES message-authentication code",
// theorem 3.3).
// Errors:  not_supported (this OpenSSL has no Poly1305, as in FIPS mode); out of memory.
// Threads: safe.
// Cost:    6 GB/s on a Xeon with AVX-512, where XXH3-128 makes 8.
result<digest> digest_of_contents(const digest_key &key, bytes_view contents);
// digest_of_contents of that many zeros. The last result of each thread is cached.
result<digest> digest_of_zeros(const digest_key &key, std::size_t bytes);

struct both_digests {
  digest contents;  // digest_of_contents
  digest stored;    // digest_of
};
// Both digests of the same bytes, which are read once.
result<both_digests> digests_of(const digest_key &key, bytes_view contents);

bool all_zero(bytes_view bytes);

sha256 sha256_of(bytes_view bytes);

}  // namespace stillmap::image
