// The driver's part: in which order, what is undone, and what a driver without it says.
#include "stillmap/checkpoint/process/driver_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "stillmap/vmm/driver/table.h"
#include "tests/support/buffer_test.h"

namespace stillmap::process {
namespace {

using stillmap::testing::fails_with;
using stillmap::testing::outcome;

// A process as the driver's documentation has it, with one step that may be refused.
struct played {
  int state = 0;
  const char *refuses = "";
  CUresult with = CUDA_ERROR_UNKNOWN;
  std::vector<std::string> calls;
  unsigned wait = 0;
  std::vector<unsigned char> pairs;
  bool zeroed = true;
};
played the;  // NOLINT

CUresult step(const char *name, int from, int to) {
  the.calls.push_back(name);
  if (std::string(the.refuses) == name) return the.with;
  if (the.state != from) return CUDA_ERROR_ILLEGAL_STATE;
  the.state = to;
  return CUDA_SUCCESS;
}
bool zeros(const void *at, std::size_t bytes) {
  const auto *b = static_cast<const unsigned char *>(at);
  return std::all_of(b, b + bytes, [](unsigned char c) { return c == 0; });
}
CUresult CUDAAPI get_state(int pid, int *state) {
  *state = the.state;
  return pid == ::getpid() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI lock(int, void *how) {
  the.wait = *static_cast<unsigned *>(how);
  the.zeroed = the.zeroed && zeros(static_cast<char *>(how) + 4, 60);
  return step("lock", 0, 1);
}
CUresult CUDAAPI checkpoint(int, void *how) {
  the.zeroed = the.zeroed && zeros(how, 64);
  return step("checkpoint", 1, 2);
}
CUresult CUDAAPI restore(int, void *how) {
  const unsigned char *at = nullptr;
  std::memcpy(&at, how, sizeof at);
  unsigned n = 0;
  std::memcpy(&n, static_cast<char *>(how) + 8, sizeof n);
  the.zeroed = the.zeroed && zeros(static_cast<char *>(how) + 12, 52);
  if (at != nullptr) the.pairs.assign(at, at + std::size_t{n} * 32);
  return step("restore", 2, 1);
}
CUresult CUDAAPI unlock(int, void *how) {
  the.zeroed = the.zeroed && zeros(how, 64);
  return step("unlock", 1, 0);
}
CUresult CUDAAPI thread_of(int, int *thread) {
  *thread = 4711;
  return CUDA_SUCCESS;
}

using calls = std::vector<std::string>;

class driver_process : public stillmap::testing::device_test {};

// On the driver's table with these in it.
class played_driver : public driver_process {
 protected:
  void SetUp() override {
    driver_process::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    table_ = const_cast<driver_table *>(&driver().table());
    was_ = *table_;
    table_->CheckpointProcessGetState = get_state;
    table_->CheckpointProcessLock = lock;
    table_->CheckpointProcessCheckpoint = checkpoint;
    table_->CheckpointProcessRestore = restore;
    table_->CheckpointProcessUnlock = unlock;
    table_->CheckpointProcessGetRestoreThreadId = thread_of;
    the = {};
  }
  void TearDown() override {
    if (table_ != nullptr) *table_ = was_;
    driver_process::TearDown();
  }

 private:
  driver_table *table_ = nullptr;
  driver_table was_;
};

TEST_F(driver_process, hostcuda_has_none_and_says_so) {
  if (!on_hostcuda()) GTEST_SKIP() << "about hostcuda";
  const status s = freeze(driver(), ::getpid());
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::not_supported)) << s.error().message();
  EXPECT_NE(s.error().message().find("cuCheckpointProcessGetState"), std::string::npos);
  EXPECT_FALSE(thaw(driver(), ::getpid()));
  EXPECT_FALSE(driver().restore_thread_of_process(::getpid()));
  EXPECT_EQ(driver().has(driver_call::CheckpointProcessLock), driver().version() >= 12080);
}

TEST_F(played_driver, frozen_and_thawed) {
  ASSERT_TRUE(freeze(driver(), ::getpid(), std::chrono::milliseconds(250)));
  EXPECT_EQ(the.state, 2);
  EXPECT_EQ(the.wait, 250u);
  EXPECT_TRUE(
      fails_with(freeze(driver(), ::getpid()), errc::invalid_argument, "process::freeze", 2, 0));
  ASSERT_TRUE(thaw(driver(), ::getpid()));
  EXPECT_EQ(the.state, 0);
  EXPECT_EQ(the.calls, (calls{"lock", "checkpoint", "restore", "unlock"}));
  EXPECT_TRUE(thaw(driver(), ::getpid()));
  EXPECT_EQ(the.calls.size(), 4u);
  EXPECT_TRUE(the.zeroed);
  EXPECT_EQ(*driver().restore_thread_of_process(1), 4711);
}

TEST_F(played_driver, a_checkpoint_that_fails_is_unlocked_again) {
  the.refuses = "checkpoint";
  the.with = CUDA_ERROR_NOT_SUPPORTED;
  EXPECT_TRUE(fails_with(freeze(driver(), ::getpid()), errc::not_supported,
                         "cuCheckpointProcessCheckpoint"));
  EXPECT_EQ(the.state, 0);
  EXPECT_EQ(the.calls, (calls{"lock", "checkpoint", "unlock"}));
}

TEST_F(played_driver, a_lock_that_takes_too_long_changes_nothing) {
  the.refuses = "lock";
  the.with = CUDA_ERROR_NOT_READY;
  EXPECT_TRUE(fails_with(freeze(driver(), ::getpid()), errc::busy, "cuCheckpointProcessLock"));
  EXPECT_EQ(the.calls, calls{"lock"});
  EXPECT_EQ(the.state, 0);
}

TEST_F(played_driver, a_thaw_that_failed_goes_on_where_it_was) {
  the.state = 2;
  the.refuses = "unlock";
  EXPECT_FALSE(thaw(driver(), ::getpid()));
  EXPECT_EQ(the.state, 1);
  the.refuses = "";
  EXPECT_TRUE(thaw(driver(), ::getpid()));
  EXPECT_EQ(the.calls, (calls{"restore", "unlock", "unlock"}));
  the.state = 3;
  EXPECT_TRUE(fails_with(thaw(driver(), ::getpid()), errc::corrupt, "process::thaw"));
}

TEST_F(played_driver, on_other_devices) {
  the.state = 2;
  device_change changes[2];
  for (unsigned char i = 0; i < 16; ++i) {
    changes[0].from[i] = i;
    changes[0].to[i] = static_cast<unsigned char>(100 + i);
    changes[1].to[i] = 7;
  }
  ASSERT_TRUE(thaw(driver(), ::getpid(), changes));
  ASSERT_EQ(the.pairs.size(), 64u);
  EXPECT_EQ(the.pairs[3], 3);
  EXPECT_EQ(the.pairs[19], 103);
  EXPECT_EQ(the.pairs[50], 7);
  EXPECT_TRUE(the.zeroed);
}

}  // namespace
}  // namespace stillmap::process
