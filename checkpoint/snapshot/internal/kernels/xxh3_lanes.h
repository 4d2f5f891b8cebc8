// XXH3-128 (seed 0) of more than 240 bytes, by eight lanes: what one thread of eight does for its 8
// bytes of each 64. Compiles for the device and for the host, where it is tested against xxHash.
// The algorithm: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define STILLMAP_BOTH __host__ __device__ __forceinline__
#define STILLMAP_CONSTANT __constant__ const
#else
#define STILLMAP_BOTH inline
#define STILLMAP_CONSTANT constexpr
#endif

namespace stillmap_kernels {

constexpr unsigned lanes = 8;
constexpr unsigned stripe_bytes = 64;
constexpr unsigned stripes_in_block = 16;  // between two scrambles

constexpr uint64_t prime32_1 = 0x9E3779B1u, prime32_2 = 0x85EBCA77u, prime32_3 = 0xC2B2AE3Du;
constexpr uint64_t prime64_1 = 0x9E3779B185EBCA87u, prime64_2 = 0xC2B2AE3D27D4EB4Fu,
                   prime64_3 = 0x165667B19E3779F9u, prime64_4 = 0x85EBCA77C2B2AE63u,
                   prime64_5 = 0x27D4EB2F165667C5u;

// The default secret, word by word.
STILLMAP_CONSTANT uint64_t secret[24] = {
    0xBE4BA423396CFEB8u, 0x1CAD21F72C81017Cu, 0xDB979083E96DD4DEu, 0x1F67B3B7A4A44072u,
    0x78E5C0CC4EE679CBu, 0x2172FFCC7DD05A82u, 0x8E2443F7744608B8u, 0x4C263A81E69035E0u,
    0xCB00C391BB52283Cu, 0xA32E531B8B65D088u, 0x4EF90DA297486471u, 0xD8ACDEA946EF1938u,
    0x3F349CE33F76FAA8u, 0x1D4F0BC7C7BBDCF9u, 0x3159B4CD4BE0518Au, 0x647378D9C97E9FC8u,
    0xC3EBD33483ACC5EAu, 0xEB6313FAFFA081C5u, 0x49DAF0B751DD0D17u, 0x9E68D429265516D3u,
    0xFCA1477D58BE162Bu, 0xCE31D07AD1B8F88Fu, 0x280416958F3ACB45u, 0x7E404BBBCAFBD7AFu};
// From byte 121 on, for the last stripe; from 11 and 117 on, for the two halves of the digest.
STILLMAP_CONSTANT uint64_t secret_of_last[8] = {
    0xEA647378D9C97E9Fu, 0xC5C3EBD33483ACC5u, 0x17EB6313FAFFA081u, 0xD349DAF0B751DD0Du,
    0x2B9E68D429265516u, 0x8FFCA1477D58BE16u, 0x45CE31D07AD1B8F8u, 0xAF280416958F3ACBu};
STILLMAP_CONSTANT uint64_t secret_of_low[8] = {
    0x6DD4DE1CAD21F72Cu, 0xA44072DB979083E9u, 0xE679CB1F67B3B7A4u, 0xD05A8278E5C0CC4Eu,
    0x4608B82172FFCC7Du, 0x9035E08E2443F774u, 0x52283C4C263A81E6u, 0x65D088CB00C391BBu};
STILLMAP_CONSTANT uint64_t secret_of_high[8] = {
    0xD9C97E9FC83159B4u, 0x3483ACC5EA647378u, 0xFAFFA081C5C3EBD3u, 0xB751DD0D17EB6313u,
    0x29265516D349DAF0u, 0x7D58BE162B9E68D4u, 0x7AD1B8F88FFCA147u, 0x958F3ACB45CE31D0u};
STILLMAP_CONSTANT uint64_t first_sums[lanes] = {prime32_3, prime64_1, prime64_2, prime64_3,
                                                prime64_4, prime32_2, prime64_5, prime32_1};

// One lane takes in a stripe: its own 8 bytes, and those of the lane beside it (lane ^ 1).
STILLMAP_BOTH uint64_t take_in(uint64_t sum, uint64_t own, uint64_t beside, uint64_t key) {
  const uint64_t mixed = own ^ key;
  return sum + beside + (mixed & 0xFFFFFFFFu) * (mixed >> 32);
}

// After stripes_in_block stripes; `key` is secret[16 + lane].
STILLMAP_BOTH uint64_t scramble(uint64_t sum, uint64_t key) {
  return (sum ^ (sum >> 47) ^ key) * prime32_1;
}

STILLMAP_BOTH uint64_t high_of_product(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  __extension__ using wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<wide>(a) * b) >> 64);
#endif
}
STILLMAP_BOTH uint64_t fold(uint64_t a, uint64_t b) {
  return a * b ^ high_of_product(a, b);
}

STILLMAP_BOTH uint64_t finish(const uint64_t *sums, const uint64_t *keys, uint64_t from) {
  uint64_t h = from;
  for (unsigned i = 0; i < lanes; i += 2) h += fold(sums[i] ^ keys[i], sums[i + 1] ^ keys[i + 1]);
  h ^= h >> 37;
  h *= 0x165667919E3779F9u;
  return h ^ (h >> 32);
}

struct digest128 {
  uint64_t low, high;
};
STILLMAP_BOTH digest128 digest_of(const uint64_t *sums, uint64_t bytes) {
  return {finish(sums, secret_of_low, bytes * prime64_1),
          finish(sums, secret_of_high, ~(bytes * prime64_2))};
}

// A number as its canonical (big-endian) bytes lie in memory.
STILLMAP_BOTH uint64_t big_endian(uint64_t x) {
#ifdef __CUDA_ARCH__
  return static_cast<uint64_t>(__byte_perm(static_cast<uint32_t>(x), 0, 0x0123)) << 32 |
         __byte_perm(static_cast<uint32_t>(x >> 32), 0, 0x0123);
#else
  return __builtin_bswap64(x);
#endif
}

}  // namespace stillmap_kernels
