// A snapshot and a suspension of one tag at the same time. Regression: the copy read pages that the
// other thread had unmapped, and the context was lost.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "tests/support/buffer_test.h"

namespace stillmap::snapshot {
namespace {

using stillmap::testing::holds;

class snapshot_beside_suspend : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_NEEDS_VMM();
    auto made = checkpoint::suspender::create(dev());
    ASSERT_TRUE(made) << made.error().message();
    suspender_ = std::move(*made);
  }
  void TearDown() override {
    std::filesystem::remove(path_);
    suspender_.reset();
    buffer_test::TearDown();
  }
  // Runs `other` on another thread when the first copy from the device is about to begin.
  static void during_the_copy(const std::function<void()> &other) {
    // In a variable: hostcuda keeps a reference.
    static std::function<void()> meanwhile;
    meanwhile = [other] { std::thread(other).join(); };
    stillmap::testing::hostcuda_control::before("cuMemcpyDtoHAsync", 1, meanwhile);
  }
  result<image::written> save_weights() const {
    const std::string tag = "weights";
    save_options options;
    options.image.replace = true;
    return save(dev(), {&tag, 1}, path_, options);
  }
  checkpoint::suspender &suspender() { return *suspender_; }

 private:
  std::unique_ptr<checkpoint::suspender> suspender_;
  const std::string path_ = ::testing::TempDir() + "/stillmap-beside-suspend.smi";
};

TEST_F(snapshot_beside_suspend, what_is_being_saved_is_not_suspended) {
  growable_buffer b = filled(3, "weights", 1);
  std::optional<result<checkpoint::suspended_tag>> refused;
  std::optional<result<image::written>> second;
  during_the_copy([&] { refused = suspender().suspend("weights"); });
  const auto saved = save_weights();
  EXPECT_TRUE(saved) << saved.error().message();
  ASSERT_TRUE(refused);
  ASSERT_FALSE(*refused);
  EXPECT_TRUE(refused->error().is(errc::busy)) << refused->error().message();
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 1));
  EXPECT_TRUE(suspender().suspend("weights")) << "the snapshot has ended";
  EXPECT_TRUE(suspender().resume("weights"));
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 1));
}

TEST_F(snapshot_beside_suspend, what_is_being_suspended_is_not_saved) {
  growable_buffer b = filled(3, "weights", 1), other = filled(1, "other", 2);
  std::optional<result<image::written>> refused;
  std::optional<result<checkpoint::suspended_tag>> twice;
  auto second = checkpoint::suspender::create(dev());
  ASSERT_TRUE(second);
  during_the_copy([&] {
    refused = save_weights();
    twice = (*second)->suspend("weights");
    EXPECT_TRUE((*second)->suspend("other")) << "another tag";
  });
  const auto suspended = suspender().suspend("weights");
  EXPECT_TRUE(suspended) << suspended.error().message();
  ASSERT_TRUE(refused && twice);
  ASSERT_FALSE(*refused);
  EXPECT_TRUE(refused->error().is(errc::busy)) << refused->error().message();
  ASSERT_FALSE(*twice);
  EXPECT_TRUE(twice->error().is(errc::busy)) << twice->error().message();
  EXPECT_TRUE(suspender().resume("weights"));
  EXPECT_TRUE((*second)->resume("other"));
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 1));
}

TEST_F(snapshot_beside_suspend, two_snapshots_do_not_disturb_each_other) {
  growable_buffer b = filled(3, "weights", 1);
  std::optional<result<image::written>> second;
  const std::string tag = "weights", path = ::testing::TempDir() + "/stillmap-second.smi";
  during_the_copy([&] { second = save(dev(), {&tag, 1}, path, {}); });
  EXPECT_TRUE(save_weights());
  ASSERT_TRUE(second);
  EXPECT_TRUE(*second) << second->error().message();
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace stillmap::snapshot
