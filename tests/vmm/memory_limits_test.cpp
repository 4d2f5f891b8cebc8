// The limits of control groups, in folders as Linux has them.
#include "stillmap/vmm/memory_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "stillmap/vmm/internal/control_groups.h"
#include "tests/support/gpu_test.h"
#include "tests/support/unique_name.h"

namespace stillmap::testing {
namespace {

constexpr std::uint64_t none = memory_limits::none;
constexpr const char *pci = "0000:17:00.0";

class control_groups : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string &file, const std::string &text) const {
    const std::filesystem::path path = root_ + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  memory_limits read(const std::string &group) const {
    return read_memory_limits(root_, group, pci);
  }
  const std::string root_ = ::testing::TempDir() + unique_name("groups");
};

TEST_F(control_groups, without_the_controller_have_no_limit) {
  EXPECT_FALSE(read("/jobs/7").any());
  EXPECT_FALSE(read("/").any());
  write("/jobs/7/dmem.max", "nvidia/0000:17:00.0/vidmem max\n");
  write("/jobs/7/dmem.min", "nvidia/0000:17:00.0/vidmem 0\n");
  EXPECT_FALSE(read("/jobs/7").any());
}

TEST_F(control_groups, have_the_limits_of_the_device) {
  write("/jobs/7/dmem.max",
        "drm/0000:17:00.0/vram0 5\nnvidia/0000:18:00.0/vidmem 6\n"
        "nvidia/0000:17:00.0/vidmem 2147483648\n");
  write("/jobs/7/dmem.min", "nvidia/0000:17:00.0/vidmem 1073741824\n");
  write("/jobs/7/dmem.current", "nvidia/0000:17:00.0/vidmem 4096\n");
  const memory_limits l = read("/jobs/7");
  EXPECT_EQ(l.hard, std::uint64_t{2} << 30);
  EXPECT_EQ(l.soft, std::uint64_t{1} << 30);
  EXPECT_EQ(l.used, 4096u);
  EXPECT_EQ(read_memory_limits(root_, "/jobs/7", "0000:18:00.0").hard, 6u);
  EXPECT_FALSE(read_memory_limits(root_, "/jobs/7", "0001:17:00.0").any());
  EXPECT_FALSE(read("/jobs").any()) << "of a group within it";
}

TEST_F(control_groups, obey_those_above_them) {
  write("/dmem.max", "nvidia/0000:17:00.0/vidmem 900\n");
  write("/jobs/dmem.max", "nvidia/0000:17:00.0/vidmem 500\n");
  write("/jobs/dmem.min", "nvidia/0000:17:00.0/vidmem 300\n");
  write("/jobs/dmem.current", "nvidia/0000:17:00.0/vidmem 50\n");
  write("/jobs/7/dmem.max", "nvidia/0000:17:00.0/vidmem 700\n");
  write("/jobs/7/dmem.min", "nvidia/0000:17:00.0/vidmem 0\n");
  write("/jobs/7/dmem.current", "nvidia/0000:17:00.0/vidmem 40\n");
  const memory_limits l = read("/jobs/7/step");
  EXPECT_EQ(l.hard, 500u);
  EXPECT_EQ(l.soft, 300u);
  EXPECT_EQ(l.used, 50u);
  EXPECT_EQ(read("/").hard, 900u);
}

TEST_F(control_groups, name_addresses_in_any_way) {
  write("/a/dmem.max", "nvidia/00000000:17:00.0/vidmem 500\n");
  EXPECT_EQ(read("/a").hard, 500u);
  write("/a/dmem.max", "nvidia/0000:AF:00.0/vidmem 600\n");
  EXPECT_EQ(read_memory_limits(root_, "/a", "0000:af:00.0").hard, 600u);
}

TEST_F(control_groups, with_malformed_files_have_no_limit) {
  for (const char *const text :
       {"nvidia/0000:17:00.0/vidmem\n", "nvidia/0000:17:00.0/vidmem -5\n", "nvidia//vidmem 5\n",
        "nvidia/vidmem 5\n", "nvidia/0000:17:00.0/vidmem 99999999999999999999\n", "\n \n 5",
        "nvidia/0000:17:00.0/vidmem 5 6\n", "/vidmem 5\n"}) {
    write("/a/dmem.max", text);
    EXPECT_EQ(read("/a").hard, none) << text;
  }
}

TEST_F(device_test, memory_limits_of_a_device_cost_no_call_without_groups_of_nvidia) {
  const device d = open_device();
  const auto l = memory_limits_of(d);
  ASSERT_TRUE(l) << l.error().message();
  if (!std::ifstream("/sys/fs/cgroup/dmem.capacity")) {
    EXPECT_FALSE(l->any());
  }
}

}  // namespace
}  // namespace stillmap::testing
