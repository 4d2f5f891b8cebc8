// Which limit of host memory is the smallest, on machines made of files.
#include "stillmap/checkpoint/base/host_room.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "stillmap/vmm/base/operation.h"

namespace stillmap::checkpoint {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20, gib = std::uint64_t{1} << 30;
const std::string unlimited = "9223372036854771712";  // of version 1

// A /proc and a /sys/fs/cgroup below a folder.
class host_room_test : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
    write("/proc/meminfo", "MemTotal: 24000000 kB\nMemFree: 1000 kB\nMemAvailable: 8388608 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string &path, const std::string &text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // The hierarchies that are mounted and the group of the process in them.
  void mount_v2(const std::string &group, const std::string &shown = "/") const {
    write("/proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n30 23 0:26 " + shown +
                                      " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    write("/proc/self/cgroup", "0::" + group + "\n");
  }
  void mount_v1(const std::string &group, const std::string &shown = "/") const {
    write("/proc/self/mountinfo",
          "31 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n32 31 0:29 " + shown +
              " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
              "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    write("/proc/self/cgroup", "8:pids:/other\n4:memory:" + group + "\n0::/\n");
  }
  void group_v2(const std::string &path, const std::string &max, std::uint64_t current,
                const std::string &stat = "", const std::string &high = "max") const {
    const std::string folder = "/sys/fs/cgroup" + path;
    write(folder + "/memory.max", max + "\n");
    write(folder + "/memory.high", high + "\n");
    write(folder + "/memory.current", std::to_string(current) + "\n");
    write(folder + "/memory.stat", stat);
  }
  void group_v1(const std::string &path, const std::string &limit, std::uint64_t usage,
                const std::string &stat = "") const {
    const std::string folder = "/sys/fs/cgroup/memory" + path;
    write(folder + "/memory.limit_in_bytes", limit + "\n");
    write(folder + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
    write(folder + "/memory.stat", stat);
  }
  host_room room() const { return available_host_memory(root_); }
  static std::string text(std::uint64_t bytes) { return std::to_string(bytes); }
  const std::string &root() const { return root_; }

 private:
  std::string root_ = "/tmp/stillmap-room-XXXXXX";
};

TEST_F(host_room_test, without_groups_it_is_what_the_machine_has) {
  EXPECT_EQ(room().bytes, 8 * gib);
  EXPECT_EQ(room().limit, "/proc/meminfo");
}

TEST_F(host_room_test, nothing_known_is_no_limit) {
  std::filesystem::remove_all(root() + "/proc");
  EXPECT_EQ(room().bytes, UINT64_MAX);
  EXPECT_TRUE(check_host_room(UINT64_MAX / 2, "advice", root()));
}

TEST_F(host_room_test, a_group_of_version_2_limits_it) {
  mount_v2("/job");
  group_v2("/job", text(4 * gib), gib);
  EXPECT_EQ(room().bytes, 3 * gib);
  EXPECT_EQ(room().limit, "/sys/fs/cgroup/job/memory.max");
}

// A limit of any group around counts, not only that of the innermost one.
TEST_F(host_room_test, groups_around_limit_it) {
  mount_v2("/pod/container/job");
  group_v2("/pod/container/job", "max", gib / 2);
  group_v2("/pod/container", text(6 * gib), gib);
  group_v2("/pod", text(5 * gib), 3 * gib);
  EXPECT_EQ(room().bytes, 2 * gib);
  EXPECT_EQ(room().limit, "/sys/fs/cgroup/pod/memory.max");
  group_v2("/pod/container/job", text(gib), gib / 2);
  EXPECT_EQ(room().bytes, gib / 2);
  EXPECT_EQ(room().limit, "/sys/fs/cgroup/pod/container/job/memory.max");
}

TEST_F(host_room_test, the_limit_that_slows_a_process_down_counts) {
  mount_v2("/job");
  group_v2("/job", text(4 * gib), gib, "", text(2 * gib));
  EXPECT_EQ(room().bytes, gib);
  EXPECT_EQ(room().limit, "/sys/fs/cgroup/job/memory.high");
}

// The page cache of a group is given up before the group is short. Shared memory is not.
TEST_F(host_room_test, page_cache_is_available) {
  mount_v2("/job");
  group_v2("/job", text(4 * gib), 4 * gib,
           "anon 1\nfile " + text(3 * gib) + "\nshmem " + text(gib) + "\ninactive_file " +
               text(gib) + "\nactive_file " + text(gib / 2) + "\nslab_reclaimable " +
               text(gib / 4) + "\n");
  EXPECT_EQ(room().bytes, gib + gib / 2 + gib / 4);
  mount_v1("/job");
  group_v1("/job", text(4 * gib), 4 * gib,
           "cache 1\ninactive_file 7\ntotal_inactive_file " + text(gib) + "\ntotal_active_file " +
               text(gib / 2) + "\n");
  EXPECT_EQ(room().bytes, gib + gib / 2);
}

TEST_F(host_room_test, groups_of_version_1_limit_it) {
  mount_v1("/docker/job");
  group_v1("", unlimited, 5 * gib);
  group_v1("/docker", text(6 * gib), 2 * gib);
  group_v1("/docker/job", unlimited, gib);
  EXPECT_EQ(room().bytes, 4 * gib);
  EXPECT_EQ(room().limit, "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes");
}

// A container sees its own group only, at the mount point.
TEST_F(host_room_test, the_group_at_the_mount_point_is_found) {
  mount_v1("/docker/job", "/docker/job");
  group_v1("", unlimited, gib, "hierarchical_memory_limit " + text(3 * gib) + "\n");
  EXPECT_EQ(room().bytes, 2 * gib);
  EXPECT_EQ(room().limit, "/sys/fs/cgroup/memory/memory.stat");
  group_v1("", text(2 * gib), gib);
  EXPECT_EQ(room().bytes, gib);
  for (const char *const hidden : {"/", "/../../elsewhere"}) {
    mount_v2(hidden);
    group_v2("", text(5 * gib), gib);
    EXPECT_EQ(room().bytes, 4 * gib) << hidden;
  }
  mount_v2("/other", "/docker");
  EXPECT_EQ(room().bytes, 4 * gib) << "a group beside the one that is mounted";
}

TEST_F(host_room_test, a_group_that_is_over_its_limit_has_no_room) {
  mount_v2("/job");
  group_v2("/job", text(gib), 2 * gib);
  EXPECT_EQ(room().bytes, 0u);
  const status s = check_host_room(mib, "advice", root());
  ASSERT_FALSE(s);
  EXPECT_NE(s.error().message().find("limit 1 B"), std::string::npos) << "0 would be no limit";
}

TEST_F(host_room_test, what_does_not_fit_is_refused_with_all_that_matters) {
  const operation_scope scope("suspender::suspend");
  mount_v2("/job");
  group_v2("/job", text(4 * gib), gib);
  EXPECT_TRUE(check_host_room(2 * gib, "advice", root()));
  // Page tables and the rest of the process need memory, too.
  EXPECT_FALSE(check_host_room(3 * gib - mib, "advice", root()));
  const status s = check_host_room(10 * gib, "use a file", root());
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::out_of_memory));
  EXPECT_EQ(s.error().value, 10 * gib);
  EXPECT_LE(s.error().limit, 3 * gib);
  EXPECT_GE(s.error().limit, 3 * gib - 200 * mib);
  EXPECT_EQ(s.error().message().find(
                "/sys/fs/cgroup/job/memory.max: suspender::suspend: use a file (requested 10 GiB"),
            0u)
      << s.error().message();
}

TEST(host_room, this_machine_has_one) {
  const host_room room = available_host_memory();
  EXPECT_FALSE(room.limit.empty());
  EXPECT_NE(room.bytes, 0u);
  EXPECT_LT(room.bytes, std::uint64_t{1} << 50);
}

}  // namespace
}  // namespace stillmap::checkpoint
