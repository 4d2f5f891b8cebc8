// page_pool when memory is short: which pages it takes, whether a stream or the host waits, and its
// error when there are none.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "stillmap/vmm/growable_buffer.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/physical_memory.h"
#include "tests/support/pool_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using testing::fails_with;
using testing::hold;
using testing::outcome;
using testing::release;

class page_pool_short : public testing::pool_test {
 protected:
  void SetUp() override {
    pool_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
  }
};

TEST_F(page_pool_short, all_or_none_when_memory_is_out) {
  const auto pool = make_pool();
  ASSERT_TRUE(pool->prepare(2 * page()));
  leave_free(2);
  std::vector<page_ptr> pages;
  const page_pool_stats before = pool->stats();
  const status s = pool->acquire(6, pages);
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::out_of_memory));
  EXPECT_EQ(s.error().value, 6 * page());
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool->stats().created, before.created);
  EXPECT_EQ(pool->stats().free, before.free);
  EXPECT_EQ(pool->stats().pages_reused, before.pages_reused);
  EXPECT_EQ(dev().memory()->free.bytes(), 2 * page());
  ASSERT_TRUE(pool->acquire(4, pages));
}

class counting_quota final : public memory_quota {
 public:
  explicit counting_quota(std::uint64_t limit) : limit_(limit) {}
  status reserve(std::uint64_t bytes) override {
    if (held_ + bytes > limit_) {
      return make_error(errc::out_of_memory, "no more", bytes, limit_ - held_);
    }
    held_ += bytes;
    return {};
  }
  status release(std::uint64_t bytes) override {
    held_ -= bytes;
    return {};
  }
  std::uint64_t held() const { return held_; }

 private:
  const std::uint64_t limit_;
  std::uint64_t held_ = 0;
};

TEST_F(page_pool_short, asks_its_quota_and_tells_it_what_is_gone) {
  const auto quota = std::make_shared<counting_quota>(3 * page());
  page_pool_options options;
  options.quota = quota;
  options.keep_free = page();
  const auto pool = make_pool(options);
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(2, pages));
  EXPECT_EQ(quota->held(), 2 * page());
  EXPECT_TRUE(fails_with(pool->acquire(2, pages), errc::out_of_memory, "page_pool::acquire"));
  EXPECT_EQ(quota->held(), 2 * page()) << "the page it did get went back";
  testing::hostcuda_control::fail("cuMemCreate", 1, CUDA_ERROR_UNKNOWN);
  pages.pop_back();
  ASSERT_TRUE(pool->trim());
  EXPECT_EQ(quota->held(), page());
  EXPECT_FALSE(pool->acquire(1, pages));
  EXPECT_EQ(quota->held(), page()) << "what was not created is not held";
  auto by_hand = physical_memory::create(dev(), page());
  ASSERT_TRUE(by_hand);
  auto adopted = pool->adopt(std::move(*by_hand));
  ASSERT_TRUE(adopted);
  EXPECT_EQ(quota->held(), page()) << "adopted memory was nobody's grant";
  adopted = page_ptr();
  pages.clear();
  ASSERT_TRUE(pool->trim());
  EXPECT_EQ(quota->held(), 0u);
}

TEST_F(page_pool_short, has_a_limit_of_its_own) {
  page_pool_options options;
  options.limit = 2 * page();
  const auto pool = make_pool(options);
  std::vector<page_ptr> pages;
  EXPECT_TRUE(fails_with(pool->acquire(3, pages), errc::out_of_memory, "page_pool::acquire",
                         3 * page(), 2 * page()));
  ASSERT_TRUE(pool->acquire(2, pages));
  pages.clear();
  ASSERT_TRUE(pool->acquire(2, pages)) << "its own free pages count once";
}

TEST_F(page_pool_short, waiting_pages_serve_a_stream_that_waits_when_memory_is_short) {
  const auto pool = make_pool();
  const stream busy = make_stream(), s = make_stream();
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(2, pages));
  leave_free(0);
  hold(busy.get());
  const fence f = after(busy);
  for (page_ptr &p : pages) p.retire(f);
  pages.clear();
  const driver_counts before = counts();
  ASSERT_TRUE(pool->acquire(2, pages, s));
  EXPECT_EQ((counts() - before)[driver_call::StreamWaitEvent], 2u);
  EXPECT_EQ(pool->stats().host_waits, 0u);
  fence mine = after(s);
  EXPECT_FALSE(*mine.passed());
  pages.clear();
  EXPECT_EQ(pool->stats().waiting.bytes(), 2 * page()) << "its old users are at work still";
  release(busy.get());
  ASSERT_TRUE(mine.wait());
  ASSERT_TRUE(pool->acquire(2, pages));
}

TEST_F(page_pool_short, waiting_pages_make_the_host_wait_where_there_is_no_stream) {
  const auto pool = make_pool();
  const stream s = make_stream();
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(2, pages));
  leave_free(0);
  const fence f = after(s);
  for (page_ptr &p : pages) p.retire(f);
  pages.clear();
  ASSERT_TRUE(pool->acquire(2, pages));
}

TEST_F(page_pool_short, retiring_mappings_make_the_host_wait_where_there_is_no_stream) {
  const auto pool = make_pool();
  buffer_options options;
  options.pools = {pool};
  growable_buffer buffer = make(options);
  ASSERT_TRUE(buffer.resize(2 * page()));
  leave_free(0);
  const stream busy = make_stream();
  hold(busy.get());
  ASSERT_TRUE(buffer.resize(0));
  ASSERT_TRUE(buffer.shrink_to_fit(after(busy)));
  ASSERT_EQ(dev().space().stats().retiring_mappings, 2u);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    release(busy.get());
  });
  std::vector<page_ptr> pages;
  const status got = pool->acquire(2, pages);
  later.join();
  EXPECT_TRUE(got) << got.error().message();
  EXPECT_EQ(pool->stats().host_waits, 1u);
  EXPECT_EQ(dev().space().stats().retiring_mappings, 0u);
  // Without one, there is nothing to wait for.
  EXPECT_FALSE(pool->acquire(1, pages));
  EXPECT_EQ(pool->stats().host_waits, 1u);
}

TEST_F(page_pool_short, what_lies_free_in_another_pool_of_the_device_is_used_when_memory_is_short) {
  const auto rich = make_pool(), poor = make_pool();
  ASSERT_TRUE(rich->prepare(3 * page()));
  leave_free(1);
  std::vector<page_ptr> pages;
  ASSERT_TRUE(poor->acquire(3, pages));
  EXPECT_EQ(free_pages(*rich), 1u) << "no more than was needed";
  const stream busy = make_stream(), s = make_stream();
  hold(busy.get());
  const fence f = after(busy);
  pages.back().retire(f);
  pages.pop_back();
  ASSERT_TRUE(poor->acquire(1, pages, s));
  EXPECT_EQ(free_pages(*rich), 0u) << "rather than have a stream wait";
  EXPECT_TRUE(fails_with(poor->acquire(2, pages, s), errc::out_of_memory, "cuMemCreate"))
      << "nothing is left anywhere";
  EXPECT_EQ(pages.size(), 3u);
  release(busy.get());
}

TEST_F(page_pool_short, the_devices_own_pool_helps_out_too) {
  const auto poor = make_pool();
  ASSERT_TRUE(dev().pool()->prepare(2 * page()));
  leave_free(0);
  std::vector<page_ptr> pages;
  ASSERT_TRUE(poor->acquire(2, pages));
  EXPECT_EQ(free_pages(*dev().pool()), 0u);
}

TEST_F(page_pool_short, a_pools_own_limit_costs_the_others_nothing) {
  page_pool_options options;
  options.limit = page();
  const auto rich = make_pool(), limited = make_pool(options);
  ASSERT_TRUE(rich->prepare(page()));
  std::vector<page_ptr> pages;
  EXPECT_FALSE(limited->acquire(2, pages));
  EXPECT_EQ(free_pages(*rich), 1u);
}

// Taken from behind a fence for an acquire that failed, they must wait again, not be ready.
TEST_F(page_pool_short, a_failed_acquire_does_not_make_waiting_pages_ready) {
  const auto pool = make_pool();
  const stream busy = make_stream(), s = make_stream();
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(2, pages));
  leave_free(0);
  hold(busy.get());
  const fence f = after(busy);
  for (page_ptr &p : pages) p.retire(f);
  pages.clear();
  EXPECT_FALSE(pool->acquire(3, pages, s));
  EXPECT_EQ(pool->stats().waiting.bytes(), 2 * page());
  release(busy.get());
}

}  // namespace
}  // namespace stillmap
