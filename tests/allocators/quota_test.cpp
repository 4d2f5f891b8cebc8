// The caching allocator under a quota: it holds only granted bytes, and a refused grant is an
// ordinary out_of_memory error.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/shared_quota.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

class quota_of_allocators : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
  }
  void TearDown() override {
    (void)shared_quota::remove(path_);
    buffer_test::TearDown();
  }
  std::shared_ptr<shared_quota> join() const {
    auto q = shared_quota::open(path_, {.limit = 8 * page()});
    if (!q) throw std::runtime_error(q.error().message());
    return *q;
  }
  std::unique_ptr<caching_allocator> heap_under(std::shared_ptr<shared_quota> q) const {
    caching_allocator_options options;
    options.quota = std::move(q);
    auto made = caching_allocator::create(dev(), std::move(options));
    if (!made) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  const std::string path_ =
      ::testing::TempDir() + "stillmap-heap-quota-" + std::to_string(getpid());
};

TEST_F(quota_of_allocators, two_of_them_share_what_there_is) {
  const auto mine = join(), yours = join();
  const auto a = heap_under(mine), b = heap_under(yours);
  const stream s = make_stream();
  const auto large = a->allocate(6 * page(), s);
  ASSERT_TRUE(large) << large.error().message();
  EXPECT_EQ(mine->stats()->own, 6 * page());
  const auto refused = b->allocate(3 * page(), s);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(errc::out_of_memory)) << refused.error().message();
  EXPECT_EQ(yours->stats()->own, 0u) << "nothing is held for what was refused";
  const auto small = b->allocate(2 * page(), s);
  ASSERT_TRUE(small) << small.error().message();
  EXPECT_EQ(mine->stats()->reserved, 8 * page());
  // Freed memory is kept, and granted still; what is given back is anybody's.
  ASSERT_TRUE(a->free(*large));
  EXPECT_EQ(mine->stats()->own, 6 * page());
  ASSERT_TRUE(s.synchronize());
  ASSERT_TRUE(a->empty_cache());
  EXPECT_EQ(mine->stats()->own, 0u);
  const auto again = b->allocate(3 * page(), s);
  EXPECT_TRUE(again) << again.error().message();
}

// A quota may free other memory of the process, in whatever context it is in.
class quota_in_another_context final : public memory_quota {
 public:
  explicit quota_in_another_context(const driver &drv) : drv_(drv) {}
  status reserve(std::uint64_t) override {
    if (!act) return {};
    EXPECT_TRUE(drv_.push_context(other));
    act();
    EXPECT_TRUE(drv_.pop_context());
    return {};
  }
  status release(std::uint64_t) override { return {}; }

  context_handle other = nullptr;
  std::function<void()> act;

 private:
  const driver &drv_;
};

class quota_callbacks : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!on_hostcuda()) GTEST_SKIP() << "about hostcuda";
    restart_as("profile=multi:2");
  }
};

// Regression: within a slow request, what the quota called in another context ran in that one.
TEST_F(quota_callbacks, may_call_this_library_in_another_context) {
  const auto other = primary_context::retain(driver(), 1);
  ASSERT_TRUE(other);
  const auto quota = std::make_shared<quota_in_another_context>(driver());
  quota->other = other->get();
  caching_allocator_options options;
  options.quota = quota;
  const auto heap = *caching_allocator::create(dev(), std::move(options));
  const stream s = make_stream();
  int fences = 0;
  quota->act = [&] {
    const auto after = fence::after(dev(), s);
    EXPECT_TRUE(after) << after.error().message();
    ++fences;
  };
  const auto block = heap->allocate(3 * page(), s);
  EXPECT_TRUE(block) << block.error().message();
  EXPECT_NE(fences, 0);
  quota->act = nullptr;
}

}  // namespace
}  // namespace stillmap
