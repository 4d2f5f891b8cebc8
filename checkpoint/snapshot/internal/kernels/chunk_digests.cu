// The digests of chunks as an image stores them (docs/image_format.md#digests): Poly1305 of each.
// tools/gpu/kernels makes ../chunk_digests_ptx.h of it.
#include "stillmap/checkpoint/snapshot/internal/kernels/poly1305.h"

namespace stillmap_kernels {
struct chunk {
  uint64_t address, bytes;
};
}  // namespace stillmap_kernels

namespace {

using namespace stillmap_kernels;

constexpr unsigned threads = 256;  // one word each of a block of 4,096 bytes
constexpr unsigned warp = 32;

__device__ __forceinline__ element load(const ulonglong2 *at) {
  const ulonglong2 w = __ldcs(at);  // each byte is read once
  return coefficient(w.x, w.y);
}

__device__ __forceinline__ void add_up_warp(element_sum &sum) {
  for (unsigned away = warp / 2; away != 0; away /= 2) {
    for (unsigned i = 0; i < limb_count; ++i) {
      sum.limb[i] += __shfl_down_sync(0xFFFFFFFFu, sum.limb[i], away);
    }
  }
}

}  // namespace

// chunks[i] are whole blocks of 4,096 bytes, at multiples of 16. `r` and `s` are the halves of the
// key.
extern "C" __global__ void __launch_bounds__(threads)
    stillmap_chunk_digests(const chunk *chunks, uint64_t count, ulonglong2 *digests, uint64_t r_low,
                           uint64_t r_high, uint64_t s_low, uint64_t s_high) {
  __shared__ element_sum parts[threads / warp];
  const thread_powers powers = powers_for(clamped(r_low, r_high), threadIdx.x, threads);
  for (uint64_t c = blockIdx.x; c < count; c += gridDim.x) {
    const chunk what = chunks[c];
    const ulonglong2 *at = reinterpret_cast<const ulonglong2 *>(what.address) + threadIdx.x;
    const uint64_t blocks = what.bytes / (threads * word_bytes);
    element h = load(at);
#pragma unroll 4
    for (uint64_t b = 1; b < blocks; ++b) {
      at += threads;
      h = plus(times(h, powers.step), load(at));
    }
    h = times(h, powers.own);
    element_sum sum;
    for (unsigned i = 0; i < limb_count; ++i) sum.limb[i] = h.limb[i];
    add_up_warp(sum);
    if (threadIdx.x % warp == 0) parts[threadIdx.x / warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (unsigned w = 1; w < threads / warp; ++w) {
        for (unsigned i = 0; i < limb_count; ++i) sum.limb[i] += parts[w].limb[i];
      }
      const tag t = finish(sum, s_low, s_high);
      digests[c] = {t.low, t.high};
    }
    __syncthreads();
  }
}
