// Driver checkpoints of processes: order of the calls, undoing, and drivers without them.
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

// A mock of the process states that the driver documents; one step can be made to fail.
struct mock_process {
  int state = 0;
  const char *failing = "";
  CUresult with = CUDA_ERROR_UNKNOWN;
  std::vector<std::string> calls;
  unsigned timeout = 0;
  std::vector<unsigned char> pairs;
  bool zeroed = true;
};
mock_process mock;  // NOLINT

CUresult step(const char *name, int from, int to) {
  mock.calls.push_back(name);
  if (std::string(mock.failing) == name) return mock.with;
  if (mock.state != from) return CUDA_ERROR_ILLEGAL_STATE;
  mock.state = to;
  return CUDA_SUCCESS;
}
bool zeros(const void *at, std::size_t bytes) {
  const auto *b = static_cast<const unsigned char *>(at);
  return std::all_of(b, b + bytes, [](unsigned char c) { return c == 0; });
}
CUresult CUDAAPI get_state(int pid, int *state) {
  *state = mock.state;
  return pid == ::getpid() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI lock(int, void *arguments) {
  mock.timeout = *static_cast<unsigned *>(arguments);
  mock.zeroed = mock.zeroed && zeros(static_cast<char *>(arguments) + 4, 60);
  return step("lock", 0, 1);
}
CUresult CUDAAPI checkpoint(int, void *arguments) {
  mock.zeroed = mock.zeroed && zeros(arguments, 64);
  return step("checkpoint", 1, 2);
}
CUresult CUDAAPI restore(int, void *arguments) {
  const unsigned char *at = nullptr;
  std::memcpy(&at, arguments, sizeof at);
  unsigned n = 0;
  std::memcpy(&n, static_cast<char *>(arguments) + 8, sizeof n);
  mock.zeroed = mock.zeroed && zeros(static_cast<char *>(arguments) + 12, 52);
  if (at != nullptr) mock.pairs.assign(at, at + std::size_t{n} * 32);
  return step("restore", 2, 1);
}
CUresult CUDAAPI unlock(int, void *arguments) {
  mock.zeroed = mock.zeroed && zeros(arguments, 64);
  return step("unlock", 1, 0);
}
CUresult CUDAAPI thread_of(int, int *thread) {
  *thread = 4711;
  return CUDA_SUCCESS;
}

using calls = std::vector<std::string>;

class driver_process : public stillmap::testing::device_test {};

// Replaces entries of the driver table by the mock's.
class mock_driver : public driver_process {
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
    mock = {};
  }
  void TearDown() override {
    if (table_ != nullptr) *table_ = was_;
    driver_process::TearDown();
  }

 private:
  driver_table *table_ = nullptr;
  driver_table was_;
};

TEST_F(driver_process, hostcuda_does_not_support_it) {
  if (!on_hostcuda()) GTEST_SKIP() << "about hostcuda";
  const status s = freeze(driver(), ::getpid());
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::not_supported)) << s.error().message();
  EXPECT_NE(s.error().message().find("cuCheckpointProcessGetState"), std::string::npos);
  EXPECT_FALSE(thaw(driver(), ::getpid()));
  EXPECT_FALSE(driver().restore_thread_of_process(::getpid()));
  EXPECT_EQ(driver().has(driver_call::CheckpointProcessLock), driver().version() >= 12080);
}

TEST_F(mock_driver, frozen_and_thawed) {
  ASSERT_TRUE(freeze(driver(), ::getpid(), std::chrono::milliseconds(250)));
  EXPECT_EQ(mock.state, 2);
  EXPECT_EQ(mock.timeout, 250u);
  EXPECT_TRUE(
      fails_with(freeze(driver(), ::getpid()), errc::invalid_argument, "process::freeze", 2, 0));
  ASSERT_TRUE(thaw(driver(), ::getpid()));
  EXPECT_EQ(mock.state, 0);
  EXPECT_EQ(mock.calls, (calls{"lock", "checkpoint", "restore", "unlock"}));
  EXPECT_TRUE(thaw(driver(), ::getpid()));
  EXPECT_EQ(mock.calls.size(), 4u);
  EXPECT_TRUE(mock.zeroed);
  EXPECT_EQ(*driver().restore_thread_of_process(1), 4711);
}

TEST_F(mock_driver, a_checkpoint_that_fails_is_unlocked_again) {
  mock.failing = "checkpoint";
  mock.with = CUDA_ERROR_NOT_SUPPORTED;
  EXPECT_TRUE(fails_with(freeze(driver(), ::getpid()), errc::not_supported,
                         "cuCheckpointProcessCheckpoint"));
  EXPECT_EQ(mock.state, 0);
  EXPECT_EQ(mock.calls, (calls{"lock", "checkpoint", "unlock"}));
}

TEST_F(mock_driver, a_lock_that_takes_too_long_changes_nothing) {
  mock.failing = "lock";
  mock.with = CUDA_ERROR_NOT_READY;
  EXPECT_TRUE(fails_with(freeze(driver(), ::getpid()), errc::busy, "cuCheckpointProcessLock"));
  EXPECT_EQ(mock.calls, calls{"lock"});
  EXPECT_EQ(mock.state, 0);
}

TEST_F(mock_driver, a_failed_thaw_continues_from_its_state) {
  mock.state = 2;
  mock.failing = "unlock";
  EXPECT_FALSE(thaw(driver(), ::getpid()));
  EXPECT_EQ(mock.state, 1);
  mock.failing = "";
  EXPECT_TRUE(thaw(driver(), ::getpid()));
  EXPECT_EQ(mock.calls, (calls{"restore", "unlock", "unlock"}));
  mock.state = 3;
  EXPECT_TRUE(fails_with(thaw(driver(), ::getpid()), errc::corrupt, "process::thaw"));
}

TEST_F(mock_driver, on_other_devices) {
  mock.state = 2;
  device_change changes[2];
  for (unsigned char i = 0; i < 16; ++i) {
    changes[0].from[i] = i;
    changes[0].to[i] = static_cast<unsigned char>(100 + i);
    changes[1].to[i] = 7;
  }
  ASSERT_TRUE(thaw(driver(), ::getpid(), changes));
  ASSERT_EQ(mock.pairs.size(), 64u);
  EXPECT_EQ(mock.pairs[3], 3);
  EXPECT_EQ(mock.pairs[19], 103);
  EXPECT_EQ(mock.pairs[50], 7);
  EXPECT_TRUE(mock.zeroed);
}

}  // namespace
}  // namespace stillmap::process
