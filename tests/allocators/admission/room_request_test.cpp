// What a request makes of a measurement of the device.
#include "stillmap/allocators/admission/room_request.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include "stillmap/allocators/shared_quota.h"

namespace stillmap {
namespace {

class room_request_test : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto made = shared_quota::open(path_, {.limit = 100});
    ASSERT_TRUE(made) << made.error().message();
    other_ = *made;
    ASSERT_TRUE(ledger_.file().open(path_.c_str(), ledger_.only_own(), false));
    ASSERT_TRUE(ledger_.begin(
        0, [&](quota_table &t) STILLMAP_REQUIRES(ledger_held) { return seat_.take(t, {}); }));
  }
  void TearDown() override { (void)shared_quota::remove(path_); }
  room_request request(std::uint64_t bytes) {
    return {ledger_, seat_, bytes, std::chrono::steady_clock::now() + std::chrono::seconds(20)};
  }
  std::uint64_t outside() const { return shared_quota::stats_of(path_)->outside; }

  const std::string path_ = ::testing::TempDir() + "stillmap-room-" + std::to_string(getpid());
  std::shared_ptr<shared_quota> other_;
  quota_ledger ledger_{path_};
  quota_seat seat_{ledger_};
};

using progress = room_request::progress;

TEST_F(room_request_test, what_others_than_participants_use_is_not_there) {
  ASSERT_TRUE(other_->reserve(20));
  room_request wants = request(50);
  ASSERT_TRUE(wants.prepare_measure());
  const auto looked = wants.look(device_use{100, 60});
  ASSERT_TRUE(looked);
  EXPECT_EQ(*looked, progress::waits) << "20 are reserved, so 40 are others'";
  EXPECT_EQ(outside(), 40u);
  wants.withdraw();
}

// Regression: what a participant released after the measurement counted as used by others, until the next one.
TEST_F(room_request_test, what_is_released_after_the_measurement_is_nobody_elses) {
  ASSERT_TRUE(other_->reserve(60));
  room_request wants = request(50);
  ASSERT_TRUE(wants.prepare_measure());
  const device_use measured{100, 60};
  ASSERT_TRUE(other_->release(60));
  const auto looked = wants.look(measured);
  ASSERT_TRUE(looked);
  EXPECT_EQ(*looked, progress::granted);
  EXPECT_EQ(outside(), 0u);
}

TEST_F(room_request_test, what_is_created_before_the_measurement_was_reserved_before) {
  room_request wants = request(30);
  ASSERT_TRUE(wants.prepare_measure());
  ASSERT_TRUE(other_->reserve(60));
  const auto looked = wants.look(device_use{100, 60});
  ASSERT_TRUE(looked);
  EXPECT_EQ(*looked, progress::granted);
  EXPECT_EQ(outside(), 0u);
}

}  // namespace
}  // namespace stillmap
