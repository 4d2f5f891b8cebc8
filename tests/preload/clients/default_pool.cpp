// The client of preload_default_pool_test: what a program is told about the device's default pool, beside what
// cuMemGetInfo says. default_pool THRESHOLD
#include <cstdlib>
#include <random>

#include "tests/preload/clients/semantics.h"

namespace {

struct figures {
  std::uint64_t used = 0, reserved = 0, used_peak = 0, reserved_peak = 0;
  std::size_t taken = 0;  // of the device
};

int read(CUmemoryPool pool, figures &f) {
  CLIENT_CHECK(cuCtxSynchronize());
  CLIENT_CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &f.used));
  CLIENT_CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &f.reserved));
  CLIENT_CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &f.used_peak));
  CLIENT_CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &f.reserved_peak));
  std::size_t free_bytes = 0, total = 0;
  CLIENT_CHECK(cuMemGetInfo(&free_bytes, &total));
  f.taken = total - free_bytes;
  return 0;
}

}  // namespace

int main(int, char **words) {
  if (client::use_device(0) != 0) return 1;
  int pools = 0;
  CLIENT_CHECK(cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
  if (pools == 0) return 0;
  CUmemoryPool pool = nullptr;
  CLIENT_CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
  std::uint64_t threshold = std::strtoull(words[1], nullptr, 10);
  CLIENT_CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  const CUstream s = client::new_stream();
  figures before, now;
  if (read(pool, before) != 0) return 1;
  std::mt19937 random(7);
  std::vector<CUdeviceptr> blocks;
  for (int step = 0; step < 400; ++step) {
    // First it grows, then it shrinks to nothing.
    if (blocks.empty() || (step < 300 && random() % 5 < 3)) {
      CUdeviceptr at = 0;
      CLIENT_CHECK(cuMemAllocAsync(&at, 1 + random() % (3 << 20), s));
      blocks.push_back(at);
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      CLIENT_CHECK(cuMemFreeAsync(blocks.back(), s));
      blocks.pop_back();
    }
    if (step % 20 != 0) continue;
    if (read(pool, now) != 0) return 1;
    CLIENT_EXPECT(now.taken - before.taken == now.reserved - before.reserved);
    CLIENT_EXPECT(now.used <= now.reserved);
    CLIENT_EXPECT(now.used <= now.used_peak && now.reserved <= now.reserved_peak);
  }
  for (const CUdeviceptr at : blocks) CLIENT_CHECK(cuMemFreeAsync(at, s));
  if (read(pool, now) != 0) return 1;
  CLIENT_EXPECT(now.used == 0);
  CLIENT_EXPECT(now.taken - before.taken == now.reserved - before.reserved);
  CLIENT_EXPECT(threshold == 0 ? now.reserved == 0 : now.reserved > 0);
  CLIENT_CHECK(cuMemPoolTrimTo(pool, 0));
  if (read(pool, now) != 0) return 1;
  CLIENT_EXPECT(now.reserved == 0);
  // Each peak is reset by itself.
  CLIENT_EXPECT(now.used_peak > 0 && now.reserved_peak > 0);
  const figures earlier = now;
  std::uint64_t none = 0;
  CLIENT_CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &none));
  if (read(pool, now) != 0) return 1;
  CLIENT_EXPECT(now.used_peak == 0 && now.reserved_peak == earlier.reserved_peak);
  CUdeviceptr last = 0;
  CLIENT_CHECK(cuMemAllocAsync(&last, 1000, s));
  CLIENT_CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &none));
  if (read(pool, now) != 0) return 1;
  // The allocator may count 64 KiB of small blocks as one for a moment.
  constexpr std::uint64_t slab = 64 << 10;
  CLIENT_EXPECT(now.used_peak >= now.used && now.used_peak <= now.used + slab);
  CLIENT_EXPECT(now.reserved_peak >= now.reserved && now.reserved_peak <= now.reserved + slab);
  CLIENT_CHECK(cuMemFreeAsync(last, s));
  std::printf("blocks %zu\n", blocks.size());
  return 0;
}
