// What the compared allocators hold and report: direct, the driver's pool, and segments.
#include <gtest/gtest.h>

#include "bench/replay/replay.h"
#include "stillmap/vmm/context.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {
namespace {

using namespace stillmap::literals;
using namespace stillmap::replay;

class BaselineTest : public buffer_test {
 protected:
  std::unique_ptr<replay_target> target(const char *name, const target_options &o = {}) const {
    auto made = (*find_target(name))->make(dev(), o);
    EXPECT_TRUE(made) << (made ? "" : made.error().message());
    return made ? std::move(*made) : nullptr;
  }
};

TEST_F(BaselineTest, ReleasedAddressesAreMappedAgainAndTheRestOfAChunkIsKept) {
  STILLMAP_NEEDS_VMM();
  const context_guard guard(driver(), dev().context());
  const stream s = make_stream();
  target_options o;
  o.limit = 100_MiB;  // five chunks
  const auto segments = target("segments-expanding", o);
  ASSERT_TRUE(segments);
  const auto allocate = [&](std::size_t bytes) {
    const auto got = segments->allocate(bytes, s);
    EXPECT_TRUE(got) << (got ? "" : got.error().message());
    return got ? static_cast<char *>(*got) : nullptr;
  };
  char *const first = allocate(45_MiB);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(allocate(10_MiB), first + 45_MiB) << "it shares a chunk with the first";
  EXPECT_EQ(segments->committed_bytes(), 60_MiB);
  ASSERT_TRUE(segments->free(first));
  // Three chunks more than the limit allows: the two whole ones of the first are released.
  EXPECT_EQ(allocate(50_MiB), first + 55_MiB);
  EXPECT_EQ(segments->committed_bytes(), 80_MiB);
  EXPECT_EQ(allocate(20_MiB), first);
  EXPECT_EQ(allocate(5_MiB), first + 40_MiB) << "the end of the first is still mapped";
  EXPECT_EQ(segments->committed_bytes(), 100_MiB);
}

TEST_F(BaselineTest, DirectHoldsItsBlocksRoundedTo512Bytes) {
  const context_guard guard(driver(), dev().context());
  const stream s = make_stream();
  const auto direct = target("direct");
  ASSERT_TRUE(direct);
  const auto a = direct->allocate(1, s), b = direct->allocate(1025, s);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(direct->committed_bytes(), 512u + 1536);
  ASSERT_TRUE(direct->free(*b));
  EXPECT_EQ(direct->committed_bytes(), 512u);
  EXPECT_EQ(direct->peak_committed_bytes(), 512u + 1536);
}

TEST_F(BaselineTest, AnUnknownBlockIsAnError) {
  const context_guard guard(driver(), dev().context());
  const stream s = make_stream();
  for (const char *const name : {"direct", "pool"}) {
    if (name[0] == 'p' && !dev().capabilities().memory_pools) continue;
    const auto baseline = target(name);
    ASSERT_TRUE(baseline);
    const auto block = baseline->allocate(512, s);
    ASSERT_TRUE(block);
    ASSERT_TRUE(baseline->free(*block));
    EXPECT_TRUE(fails_with(baseline->free(*block), errc::invalid_argument,
                           name[0] == 'p' ? "pool::free" : "direct::free"));
    if (name[0] == 'p') {
      EXPECT_TRUE(
          fails_with(baseline->record_use(*block, s), errc::invalid_argument, "pool::record_use"));
    }
  }
}

TEST_F(BaselineTest, ThePoolCountsWhatItHoldsAndThenKeepsNothing) {
  if (!dev().capabilities().memory_pools) GTEST_SKIP() << "has no memory pools";
  const auto get_default = reinterpret_cast<CUresult (*)(CUmemoryPool *, CUdevice)>(
      driver().symbol("cuDeviceGetDefaultMemPool"));
  const auto get = reinterpret_cast<CUresult (*)(CUmemoryPool, CUmemPool_attribute, void *)>(
      driver().symbol("cuMemPoolGetAttribute"));
  ASSERT_TRUE(get_default != nullptr && get != nullptr);
  const context_guard guard(driver(), dev().context());
  CUmemoryPool standard = nullptr;
  ASSERT_EQ(get_default(&standard, dev().ordinal()), CUDA_SUCCESS);
  const auto attribute = [&](CUmemPool_attribute which) {
    cuuint64_t bytes = 77;
    EXPECT_EQ(get(standard, which, &bytes), CUDA_SUCCESS);
    return bytes;
  };
  const stream s = make_stream();
  {
    const auto pool = target("pool");
    ASSERT_TRUE(pool);
    EXPECT_EQ(attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), UINT64_MAX);
    const auto block = pool->allocate(40_MiB, s);
    ASSERT_TRUE(block) << block.error().message();
    EXPECT_GE(pool->committed_bytes(), 40_MiB);
    EXPECT_GE(pool->peak_committed_bytes(), 40_MiB);
    ASSERT_TRUE(pool->free(*block));
  }
  EXPECT_EQ(attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0u);
  EXPECT_EQ(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
}

}  // namespace
}  // namespace stillmap::testing
