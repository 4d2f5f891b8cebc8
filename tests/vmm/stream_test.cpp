#include "stillmap/vmm/stream.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "stillmap/vmm/driver/table.h"
#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using testing::hold;
using testing::release;

class fence_test : public testing::device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    device_ = open_device();
  }
  void TearDown() override {
    device_.reset();
    device_test::TearDown();
  }
  const device &dev() const { return *device_; }
  stream make_stream() const { return *stream::create(dev()); }
  fence after(const stream &s) const { return *fence::after(dev(), s); }
  std::uint64_t events_created() const { return driver().counts()[driver_call::EventCreate]; }

  std::optional<device> device_;
};

TEST_F(fence_test, of_the_users_own_event_leaves_it_to_the_user) {
  const stream s = make_stream(), other = make_stream();
  const context_guard guard(driver(), dev().context());
  const auto event = driver().create_event();
  ASSERT_TRUE(event);
  hold(s.get());
  ASSERT_TRUE(driver().record_event(*event, s.get()));
  const driver_counts before = driver().counts();
  auto f = fence::of(dev(), *event);
  ASSERT_TRUE(f);
  EXPECT_EQ((driver().counts() - before).total(), 0u);
  EXPECT_FALSE(*f->passed());
  ASSERT_TRUE(f->make_wait(dev(), other));
  EXPECT_FALSE(*other.idle());
  release(s.get());
  ASSERT_TRUE(f->wait());
  ASSERT_TRUE(other.synchronize());
  EXPECT_TRUE(*f->passed());
  f = fence();
  EXPECT_TRUE(driver().destroy_event(*event)) << "still the user's";
  EXPECT_FALSE(fence::of(dev(), event_handle{}));
}

TEST_F(fence_test, an_empty_one_has_passed_and_costs_nothing) {
  fence f;
  const stream s = make_stream();
  const driver_counts before = driver().counts();
  EXPECT_TRUE(f.trivially_passed());
  EXPECT_TRUE(*f.passed());
  EXPECT_TRUE(f.wait());
  EXPECT_TRUE(f.make_wait(dev(), s));
  EXPECT_EQ((driver().counts() - before).total(), 0u);
}

TEST_F(fence_test, passes_when_the_work_before_it_has) {
  const stream s = make_stream();
  hold(s.get());
  fence f = after(s);
  EXPECT_FALSE(f.trivially_passed());
  EXPECT_FALSE(*f.passed());
  EXPECT_FALSE(*s.idle());
  release(s.get());
  EXPECT_TRUE(s.synchronize());
  EXPECT_TRUE(*s.idle());
  EXPECT_TRUE(*f.passed());
  EXPECT_TRUE(f.trivially_passed());
}

TEST_F(fence_test, does_not_see_work_queued_after_it) {
  const stream s = make_stream();
  fence f = after(s);
  EXPECT_TRUE(f.wait());
  hold(s.get());
  fence later = after(s);
  EXPECT_TRUE(*f.passed());
  EXPECT_FALSE(*later.passed());
  release(s.get());
  EXPECT_TRUE(later.wait());
}

TEST_F(fence_test, wait_returns_once_another_thread_lets_the_work_go) {
  const stream s = make_stream();
  hold(s.get());
  fence f = after(s);
  std::thread other([&] { release(s.get()); });
  EXPECT_TRUE(f.wait());
  EXPECT_TRUE(f.trivially_passed());
  other.join();
}

TEST_F(fence_test, joined_ones_pass_together) {
  const stream a = make_stream(), b = make_stream();
  hold(a.get());
  hold(b.get());
  fence both = after(a);
  ASSERT_TRUE(both.join(after(b)));
  ASSERT_TRUE(both.join(both));
  ASSERT_TRUE(both.join(fence()));
  release(b.get());
  EXPECT_TRUE(b.synchronize());
  EXPECT_FALSE(*both.passed());
  release(a.get());
  EXPECT_TRUE(both.wait());
  EXPECT_TRUE(*both.passed());
}

TEST_F(fence_test, asks_once_about_an_event_that_copies_share) {
  const stream s = make_stream();
  fence f = after(s);
  fence copy = f;
  ASSERT_TRUE(f.join(copy));  // the same event is not asked about twice
  EXPECT_TRUE(s.synchronize());
  const driver_counts before = driver().counts();
  EXPECT_TRUE(*f.passed());
  EXPECT_TRUE(*copy.passed());
  EXPECT_TRUE(copy.wait());
  EXPECT_EQ((driver().counts() - before)[driver_call::EventQuery], 1u);
  EXPECT_EQ((driver().counts() - before)[driver_call::EventSynchronize], 0u);
}

TEST_F(fence_test, another_stream_waits_for_it_without_the_host) {
  const stream first = make_stream(), second = make_stream();
  hold(first.get());
  const fence f = after(first);
  EXPECT_TRUE(f.make_wait(dev(), second));
  fence behind = after(second);
  EXPECT_FALSE(*behind.passed());
  release(first.get());
  EXPECT_TRUE(behind.wait());
}

TEST_F(fence_test, events_are_used_again) {
  const stream s = make_stream();
  const std::uint64_t before = events_created();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(after(s).wait());
  EXPECT_EQ(events_created() - before, 1u);
  fence one = after(s), two = after(s);
  EXPECT_EQ(events_created() - before, 2u);
}

TEST_F(fence_test, one_dropped_before_it_passed_leaves_a_usable_event) {
  const stream held = make_stream(), free = make_stream();
  hold(held.get());
  const std::uint64_t before = events_created();
  { const fence dropped = after(held); }
  fence f = after(free);  // the same event, recorded again
  EXPECT_EQ(events_created() - before, 1u);
  EXPECT_TRUE(free.synchronize());
  EXPECT_TRUE(*f.passed());
  release(held.get());
  EXPECT_TRUE(held.synchronize());
}

TEST_F(fence_test, a_waiting_stream_keeps_waiting_when_its_event_is_recorded_elsewhere) {
  const stream first = make_stream(), second = make_stream(), third = make_stream();
  hold(first.get());
  {
    const fence f = after(first);
    EXPECT_TRUE(f.make_wait(dev(), second));
  }
  fence again = after(third);  // the event that `second` waits for, recorded once more
  EXPECT_TRUE(again.wait());
  fence behind = after(second);
  EXPECT_FALSE(*behind.passed());
  release(first.get());
  EXPECT_TRUE(behind.wait());
}

TEST_F(fence_test, outlives_every_handle_of_its_device) {
  fence f;
  {
    const stream s = make_stream();
    hold(s.get());
    f = after(s);
    release(s.get());
    EXPECT_TRUE(s.synchronize());
  }
  device_.reset();
  EXPECT_TRUE(*f.passed());
  // A device opened meanwhile is another one and closes by itself.
  device_ = open_device();
}

TEST_F(fence_test, works_on_a_thread_that_never_had_a_context) {
  const stream s = make_stream();
  std::thread other([&] {
    auto f = fence::after(dev(), s);
    ASSERT_TRUE(f) << f.error().message();
    EXPECT_TRUE(f->wait());
    EXPECT_EQ(*driver().current_context(), nullptr);
  });
  other.join();
}

TEST_F(fence_test, the_default_stream_will_do) {
  auto f = fence::after(dev(), stream_ref());
  ASSERT_TRUE(f) << f.error().message();
  EXPECT_TRUE(f->wait());
}

TEST_F(fence_test, is_refused_while_its_stream_captures) {
  const auto begin = reinterpret_cast<CUresult (*)(CUstream, CUstreamCaptureMode)>(
      driver().symbol("cuStreamBeginCapture_v2"));
  const auto end =
      reinterpret_cast<CUresult (*)(CUstream, CUgraph *)>(driver().symbol("cuStreamEndCapture"));
  const auto destroy = reinterpret_cast<CUresult (*)(CUgraph)>(driver().symbol("cuGraphDestroy"));
  ASSERT_TRUE(begin != nullptr && end != nullptr && destroy != nullptr);
  const stream s = make_stream();
  const context_guard guard(driver(), dev().context());
  ASSERT_EQ(begin(s.get(), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  const auto f = fence::after(dev(), s);
  CUgraph graph = nullptr;
  EXPECT_EQ(end(s.get(), &graph), CUDA_SUCCESS);
  EXPECT_EQ(destroy(graph), CUDA_SUCCESS);
  ASSERT_FALSE(f);
  EXPECT_TRUE(f.error().is(errc::not_supported));
  EXPECT_STREQ(f.error().operation, "fence::after");
}

TEST_F(fence_test, a_record_that_fails_gives_its_event_back) {
  STILLMAP_NEEDS_HOSTCUDA();
  const stream s = make_stream();
  const std::uint64_t before = events_created();
  testing::hostcuda_control::fail("cuEventRecord", 1, CUDA_ERROR_INVALID_HANDLE);
  const auto refused = fence::after(dev(), s);
  ASSERT_FALSE(refused);
  EXPECT_STREQ(refused.error().operation, "cuEventRecord");
  EXPECT_TRUE(after(s).wait());
  EXPECT_EQ(events_created() - before, 1u);
}

TEST_F(fence_test, a_failed_query_forgets_nothing) {
  STILLMAP_NEEDS_HOSTCUDA();
  const stream a = make_stream(), b = make_stream();
  fence f = after(a);
  ASSERT_TRUE(f.join(after(b)));
  EXPECT_TRUE(a.synchronize());
  EXPECT_TRUE(b.synchronize());
  testing::hostcuda_control::fail("cuEventQuery", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(f.passed());
  EXPECT_FALSE(f.trivially_passed());
  testing::hostcuda_control::fail("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(f.wait());
  EXPECT_TRUE(*f.passed());
}

TEST_F(fence_test, streams_move_and_refuse_once_moved_from) {
  stream a = make_stream();
  const stream_handle handle = a.get();
  stream b = std::move(a);
  EXPECT_EQ(b.get(), handle);
  EXPECT_TRUE(a.synchronize().error().is(errc::invalid_argument));
  EXPECT_TRUE(a.idle().error().is(errc::invalid_argument));
  b = make_stream();
  EXPECT_TRUE(b.synchronize());
}

TEST_F(fence_test, a_stream_that_cannot_be_destroyed_is_reported) {
  STILLMAP_NEEDS_HOSTCUDA();
  expect_unreturnable();
  const std::uint64_t before = background_error_count();
  {
    const stream s = make_stream();
    testing::hostcuda_control::fail("cuStreamDestroy", 1, CUDA_ERROR_INVALID_HANDLE);
  }
  EXPECT_EQ(background_error_count() - before, 1u);
}

}  // namespace
}  // namespace stillmap
