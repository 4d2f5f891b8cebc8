// Digests that are computed in parts while other threads use them.
#include "stillmap/checkpoint/snapshot/internal/digest_prefetch.h"

#include <gtest/gtest.h>

#include "stillmap/checkpoint/snapshot/chunk_digests.h"
#include "tests/support/buffer_test.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::snapshot {
namespace {

constexpr std::size_t chunk = 64 << 10;

// With a digester for one call.
result<std::vector<image::digest>> prefetched_digests(const device &d,
                                                      std::span<const virtual_range> chunks) {
  return chunk_digester::create(d, {}).and_then(
      [&](chunk_digester with) { return with.digests_of(chunks); });
}

class digest_prefetch_test : public testing::buffer_test {
 protected:
  growable_buffer filled() {
    growable_buffer b = make();
    EXPECT_TRUE(b.resize(2 * page()));
    testing::put(dev(), b.address(), testing::pattern(2 * page(), 1));
    return b;
  }
  std::vector<virtual_range> chunks_of(const growable_buffer &b) const {
    std::vector<virtual_range> out;
    for (std::size_t at = 0; at < b.size(); at += chunk) out.push_back({b.address() + at, chunk});
    return out;
  }
};

TEST_F(digest_prefetch_test, digests_do_not_depend_on_parts_or_on_the_order_of_queries) {
  STILLMAP_NEEDS_VMM();
  const growable_buffer b = filled();
  const auto chunks = chunks_of(b);
  const auto all = prefetched_digests(dev(), chunks);
  ASSERT_TRUE(all) << all.error().message();
  for (const std::size_t part : {std::size_t{1}, 3 * chunk, b.size(), 9 * b.size()}) {
    digest_prefetch ahead(dev(), chunks, {}, part);
    EXPECT_EQ(ahead.of(chunks.size() - 1), all->back());
    std::thread other([&] {
      for (std::size_t i = 0; i < chunks.size(); ++i) EXPECT_EQ(ahead.of(i), (*all)[i]) << i;
    });
    for (std::size_t i = chunks.size(); i-- != 0;) EXPECT_EQ(ahead.of(i), (*all)[i]) << i;
    other.join();
  }
}

TEST_F(digest_prefetch_test, destroying_it_does_not_wait_for_the_rest) {
  STILLMAP_NEEDS_VMM();
  growable_buffer b = filled();
  for (int i = 0; i < 8; ++i) {
    digest_prefetch ahead(dev(), chunks_of(b), {}, 1);
    if (i % 2 == 0) {
      EXPECT_TRUE(ahead.of(0));
    }
  }
  EXPECT_TRUE(b.resize(page()));
  EXPECT_TRUE(b.shrink_to_fit());
}

TEST_F(digest_prefetch_test, digests_end_where_the_driver_fails) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_NEEDS_VMM();
  namespace control = testing::hostcuda_control;
  const growable_buffer b = filled();
  const auto chunks = chunks_of(b);
  const auto all = prefetched_digests(dev(), chunks);
  ASSERT_TRUE(all);
  control::fail("cuLaunchKernel", 3, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  digest_prefetch ahead(dev(), chunks, {}, 1);
  EXPECT_EQ(ahead.of(0), (*all)[0]);
  EXPECT_EQ(ahead.of(1), (*all)[1]);
  EXPECT_FALSE(ahead.of(2));
  EXPECT_FALSE(ahead.of(chunks.size() - 1));
  EXPECT_EQ(ahead.of(1), (*all)[1]);
}

TEST_F(digest_prefetch_test, chunks_that_the_device_cannot_digest_have_none) {
  STILLMAP_NEEDS_VMM();
  const growable_buffer b = filled();
  digest_prefetch ahead(dev(), {{b.address(), 4096 + 8}}, {});
  EXPECT_FALSE(ahead.of(0));
}

}  // namespace
}  // namespace stillmap::snapshot
