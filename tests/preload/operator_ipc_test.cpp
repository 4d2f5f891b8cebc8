// An operator's requests to programs that share memory by legacy IPC.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "tests/preload/operated_program.h"
#include "tests/support/unique_name.h"

namespace stillmap {
namespace {

using namespace std::chrono_literals;
using testing::client_setting;
using testing::operated_program;

class operated_sharers : public testing::preload_test {
 protected:
  void SetUp() override {
    preload_test::SetUp();
    if (profile().find("vgpu-no-vmm") != std::string::npos)
      GTEST_SKIP() << "without VMM the driver serves the memory";
    const std::string machine = testing::unique_name("operated_sharers");
    for (auto *const p : {&exporter_, &importer_}) {
      client_setting setting;
      setting.variables = {"HOSTCUDA=" + profile() + ",memory=512M,machine=" + machine,
                           "STILLMAP_PRELOAD_CONTROL=1", "STILLMAP_PRELOAD_IPC=1"};
      *p = std::make_unique<operated_program>(environment(setting), 1);
    }
    handle_ = exporter_->ask("export");
    ASSERT_EQ(handle_.size(), 128u);
  }
  static bool suspends(const operated_program &p) {
    const auto suspended = p.as_operator().suspend({.tag = "program"});
    if (!suspended) {
      EXPECT_TRUE(suspended.error().is(errc::busy)) << suspended.error().message();
    }
    return suspended.has_value();
  }
  // The exporter hears of an end by itself.
  bool exporter_suspends_soon() const {
    for (int i = 0; i < 500; ++i) {
      if (suspends(*exporter_)) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }

  std::unique_ptr<operated_program> exporter_, importer_;
  std::string handle_;
};

TEST_F(operated_sharers, are_not_suspended_while_others_have_their_memory) {
  ASSERT_EQ(importer_->ask("open " + handle_), "0");
  EXPECT_FALSE(suspends(*exporter_));
  EXPECT_EQ(exporter_->ask("constant"), "right") << "it goes on";
  EXPECT_EQ(importer_->ask("opened"), "right");
  ASSERT_EQ(importer_->ask("close"), "0");
  ASSERT_TRUE(exporter_suspends_soon());
  ASSERT_TRUE(exporter_->as_operator().resume("program"));
  EXPECT_EQ(exporter_->ask("constant"), "right");
  EXPECT_EQ(exporter_->end(), 0);
  EXPECT_EQ(importer_->end(), 0);
}

TEST_F(operated_sharers, are_not_saved_while_others_have_their_memory) {
  ASSERT_EQ(importer_->ask("open " + handle_), "0");
  const auto saved =
      exporter_->as_operator().snapshot({.tags = {"program"}, .path = file("shared.smi")});
  ASSERT_FALSE(saved) << "the other process may write to it";
  EXPECT_TRUE(saved.error().is(errc::busy)) << saved.error().message();
  EXPECT_EQ(exporter_->ask("constant"), "right");
}

TEST_F(operated_sharers, keep_what_is_not_their_own_while_they_are_suspended) {
  ASSERT_EQ(importer_->ask("open " + handle_), "0");
  const auto saved =
      importer_->as_operator().snapshot({.tags = {"program"}, .path = file("own.smi")});
  EXPECT_TRUE(saved) << saved.error().message();
  ASSERT_TRUE(suspends(*importer_));
  EXPECT_FALSE(suspends(*exporter_));
  ASSERT_TRUE(importer_->as_operator().resume("program"));
  EXPECT_EQ(importer_->ask("opened"), "right");
  EXPECT_EQ(importer_->ask("constant"), "right");
  ASSERT_EQ(importer_->ask("close"), "0");
}

TEST_F(operated_sharers, are_waited_for_while_they_are_suspended) {
  ASSERT_TRUE(suspends(*exporter_));
  importer_->tell("open " + handle_);
  std::this_thread::sleep_for(200ms);
  ASSERT_TRUE(exporter_->as_operator().resume("program"));
  EXPECT_EQ(importer_->ask("opened"), "0") << "the answer to open";
  EXPECT_EQ(importer_->ask("close"), "right") << "and to opened";
}

}  // namespace
}  // namespace stillmap
