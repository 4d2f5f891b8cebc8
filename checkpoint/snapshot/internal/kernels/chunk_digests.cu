// The digests of chunks as an image stores them (docs/image_format.md#digests), at the speed of the
// memory: XXH3-128 of each 4,096 bytes, and of those digests one after the other.
// tools/gpu/kernels makes ../chunk_digests_ptx.h of it.
#include "stillmap/checkpoint/snapshot/internal/kernels/xxh3_lanes.h"

namespace {

using namespace stillmap_kernels;

constexpr unsigned block_bytes = 4096;
constexpr unsigned threads = 256;
constexpr unsigned teams = threads / lanes;  // each of eight lanes, for one block at a time

struct chunk {
  uint64_t address, bytes;
};

// What a lane needs of the secret, in registers: constant memory answers one address at a time, and
// eight lanes ask for eight.
struct lane_keys {
  uint64_t of_stripe[stripes_in_block];
  uint64_t of_scramble, of_last;
};

// Eight threads of a warp, side by side: all of them have the digest.
__device__ __forceinline__ digest128 digest_by_team(const uint64_t *words, uint64_t bytes,
                                                    unsigned lane, unsigned team_mask,
                                                    const lane_keys &keys) {
  uint64_t sum = first_sums[lane];
  const uint64_t *at = words + lane;
  const auto take = [&](uint64_t key) {
    const uint64_t own = *at;
    sum = take_in(sum, own, __shfl_xor_sync(team_mask, own, 1, lanes), key);
    at += lanes;
  };
  uint64_t left = (bytes - 1) / stripe_bytes;  // stripes, but for the last
  for (; left >= stripes_in_block; left -= stripes_in_block) {
#pragma unroll
    for (unsigned n = 0; n < stripes_in_block; ++n) take(keys.of_stripe[n]);
    sum = scramble(sum, keys.of_scramble);
  }
#pragma unroll
  for (unsigned n = 0; n < stripes_in_block - 1; ++n) {
    if (n < left) take(keys.of_stripe[n]);
  }
  take(keys.of_last);
  uint64_t sums[lanes];
  for (unsigned i = 0; i < lanes; ++i) sums[i] = __shfl_sync(team_mask, sum, i, lanes);
  return digest_of(sums, bytes);
}

}  // namespace

// chunks[i] are at least 16 blocks of 4,096 bytes each, whole ones, at multiples of 8. `scratch` has
// room for 16 bytes for each block of the largest chunk and of each of the grid's thread blocks.
extern "C" __global__ void __launch_bounds__(threads)
    stillmap_chunk_digests(const chunk *chunks, uint64_t count, uint64_t *scratch,
                           uint64_t scratch_words, uint64_t *digests) {
  const unsigned lane = threadIdx.x % lanes, team = threadIdx.x / lanes;
  const unsigned team_mask = 0xFFu << (threadIdx.x % 32 / lanes * lanes);
  lane_keys keys;
  for (unsigned n = 0; n < stripes_in_block; ++n) keys.of_stripe[n] = secret[n + lane];
  keys.of_scramble = secret[stripes_in_block + lane];
  keys.of_last = secret_of_last[lane];
  uint64_t *const mine = scratch + blockIdx.x * scratch_words;
  for (uint64_t c = blockIdx.x; c < count; c += gridDim.x) {
    const chunk what = chunks[c];
    const uint64_t *const words = reinterpret_cast<const uint64_t *>(what.address);
    const uint64_t blocks = what.bytes / block_bytes;
    for (uint64_t b = team; b < blocks; b += teams) {
      const digest128 d =
          digest_by_team(words + b * (block_bytes / 8), block_bytes, lane, team_mask, keys);
      if (lane == 0) {
        mine[2 * b] = big_endian(d.high);
        mine[2 * b + 1] = big_endian(d.low);
      }
    }
    __syncthreads();
    if (team == 0) {
      const digest128 d = digest_by_team(mine, blocks * 16, lane, team_mask, keys);
      if (lane == 0) {
        digests[2 * c] = big_endian(d.high);
        digests[2 * c + 1] = big_endian(d.low);
      }
    }
    __syncthreads();
  }
}
