// The conclusions of `stillmap doctor` from given findings, without a device.
#include <gtest/gtest.h>

#include <cerrno>

#include "tools/stillmap/doctor/checkpoint.h"

namespace stillmap::tool {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

TEST(doctor, SuspendingNeedsRoomOnTheHost) {
  EXPECT_EQ(suspend_room(80 * gib, {100 * gib, "/proc/meminfo"}).does, works::yes);
  const finding f = suspend_room(80 * gib, {20 * gib, "/sys/fs/cgroup/job/memory.max"});
  EXPECT_EQ(f.does, works::limited);
  EXPECT_NE(f.says.find("/sys/fs/cgroup/job/memory.max"), std::string::npos) << f.says;
  EXPECT_NE(f.fix.find("file"), std::string::npos);
  EXPECT_EQ(suspend_room(80 * gib, {}).does, works::yes);
  EXPECT_EQ(integrated_suspend_room().does, works::limited);
  EXPECT_NE(integrated_suspend_room().fix.find("file"), std::string::npos);
}

TEST(doctor, PinnedMemoryAndItsLimit) {
  EXPECT_EQ(pinned_memory(gib, "", 1 << 20).does, works::yes) << "it was tried";
  const finding low = pinned_memory(gib, "out of memory", 1 << 20);
  EXPECT_EQ(low.does, works::no);
  EXPECT_NE(low.fix.find("ulimit -l"), std::string::npos);
  EXPECT_EQ(pinned_memory(gib, "out of memory", std::nullopt).fix.find("ulimit"),
            std::string::npos);
}

TEST(doctor, WhyThereIsNoIoUring) {
  EXPECT_EQ(io_uring(0, 0).does, works::yes);
  EXPECT_NE(io_uring(ENOSYS, std::nullopt).fix.find("Linux 5.1"), std::string::npos);
  EXPECT_NE(io_uring(EPERM, 2).fix.find("sysctl"), std::string::npos);
  EXPECT_NE(io_uring(EPERM, 0).says.find("seccomp"), std::string::npos);
  EXPECT_EQ(io_uring(EPERM, std::nullopt).does, works::limited);
}

TEST(doctor, HandoffNeedsDescriptors) {
  capabilities can;
  EXPECT_EQ(handoff(can).does, works::no);
  can.vmm = true;
  EXPECT_EQ(handoff(can).does, works::no);
  can.posix_fd_export = true;
  EXPECT_EQ(handoff(can).does, works::yes);
}

TEST(doctor, MigrationWithoutDigestsStandsStill) {
  capabilities can;
  EXPECT_EQ(migration_pages(can, true).does, works::no);
  can.vmm = true;
  EXPECT_EQ(migration_pages(can, false).does, works::limited);
  EXPECT_EQ(migration_pages(can, true).does, works::yes);
}

TEST(doctor, WhichCriuKnowsWhichKernel) {
  EXPECT_EQ(criu(std::nullopt, "6.1.0-20-amd64").does, works::no);
  EXPECT_NE(criu("3.17.1", "6.1.0-20-amd64").does, works::no);
  EXPECT_NE(criu("3.17.1", "6.12.9").does, works::no);
  EXPECT_EQ(criu("3.17.1", "6.13.0").does, works::no);
  EXPECT_EQ(criu("4.0", "6.13").does, works::no);
  EXPECT_NE(criu("4.1", "6.13.0-rc1").does, works::no);
  EXPECT_NE(criu("4.2.1", "7.0").does, works::no);
}

}  // namespace
}  // namespace stillmap::tool
