// Suspending in a real control group with less host memory than the tag has: an error, where the
// kernel would kill the process.
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "stillmap/checkpoint/base/host_room.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "tests/support/buffer_test.h"
#include "tests/support/effort.h"

namespace stillmap::checkpoint {
namespace {

using namespace literals;
using stillmap::testing::holds;
using stillmap::testing::pattern;
using stillmap::testing::put;

// Twice the tag is more than the group has.
constexpr std::size_t tag_bytes = 560_MiB, group_bytes = 1120_MiB;
constexpr const char *group_variable = "STILLMAP_TEST_CONTROL_GROUP";

// A group with a limit, and one inside it without. Removed at the end.
class nested_groups {
 public:
  nested_groups() {
    const std::string name = "/stillmap-test-" + std::to_string(::getpid());
    for (const std::string top : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      const bool old = top.ends_with("memory");
      std::error_code refused;
      if (!std::filesystem::create_directory(top + name, refused)) continue;
      outer_ = top + name;
      limit_ = outer_ + (old ? "/memory.limit_in_bytes" : "/memory.max");
      ready_ = std::filesystem::exists(limit_) &&
               std::filesystem::create_directory(inner(), refused) &&
               (std::ofstream(limit_) << group_bytes).flush().good();
      if (ready_) return;
      remove();
    }
  }
  nested_groups(const nested_groups &) = delete;
  ~nested_groups() { remove(); }
  bool ready() const { return ready_; }
  std::string inner() const { return outer_ + "/inner"; }
  const std::string &limit() const { return limit_; }

 private:
  void remove() const {
    ::rmdir(inner().c_str());
    ::rmdir(outer_.c_str());
  }
  std::string outer_ = "/nowhere", limit_;
  bool ready_ = false;
};

class control_group : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_NEEDS_VMM();
  }
};

TEST_F(control_group, DISABLED_suspends_in_it) {
  const char *const limit = std::getenv(group_variable);
  ASSERT_NE(limit, nullptr);
  buffer_options of_tag;
  of_tag.tag = "weights";
  growable_buffer b = make(of_tag);
  ASSERT_TRUE(b.resize(tag_bytes));
  put(dev(), b.address() + (tag_bytes - 1_MiB), pattern(1_MiB, 3));
  auto s = suspender::create(dev());
  ASSERT_TRUE(s);
  const auto refused = (*s)->suspend("weights");
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(errc::out_of_memory));
  EXPECT_EQ(refused.error().value, tag_bytes);
  const std::string said = refused.error().message();
  EXPECT_NE(said.find(limit), std::string::npos) << said;
  EXPECT_NE(said.find("file"), std::string::npos) << said;
  EXPECT_NE(said.find("suspender::suspend"), std::string::npos) << said;
  EXPECT_TRUE((*s)->suspended().empty());
  EXPECT_TRUE(holds(dev(), b.address() + (tag_bytes - 1_MiB), 1_MiB, 3));
  // A file in host memory needs the same room.
  suspend_options other;
  other.store = backing_store::file;
  other.directory = "/dev/shm";
  struct statfs shm = {};
  if (::statfs(other.directory.c_str(), &shm) == 0 && shm.f_type == TMPFS_MAGIC) {
    const auto in_memory = (*s)->suspend("weights", other);
    ASSERT_FALSE(in_memory);
    EXPECT_TRUE(in_memory.error().is(errc::out_of_memory)) << in_memory.error().message();
    EXPECT_NE(in_memory.error().message().find("tmpfs"), std::string::npos)
        << in_memory.error().message();
  }
  other.store = backing_store::discard;
  EXPECT_TRUE((*s)->suspend("weights", other)) << "what was advised";
  EXPECT_TRUE((*s)->resume("weights"));
  const status grown = b.resize(4 * tag_bytes);
  ASSERT_FALSE(grown);
  EXPECT_TRUE(grown.error().is(errc::out_of_memory)) << "hostcuda's memory is the host's, too";
}

TEST_F(control_group, with_too_little_room_refuses_instead_of_killing) {
  if (!stillmap::testing::sanitizer().empty())
    GTEST_SKIP() << "a sanitizer takes memory of its own";
  if (available_host_memory().bytes < 2_GiB) GTEST_SKIP() << "needs 2 GiB of free host memory";
  const nested_groups groups;
  if (!groups.ready()) GTEST_SKIP() << "needs the right to create memory control groups";
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(group_variable, groups.limit().c_str(), 1);
    for (const char *const name : {"XML_OUTPUT_FILE", "GTEST_OUTPUT", "TESTBRIDGE_TEST_ONLY",
                                   "GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"}) {
      ::unsetenv(name);
    }
    const bool inside =
        (std::ofstream(groups.inner() + "/cgroup.procs") << ::getpid()).flush().good();
    if (inside) {
      ::execl("/proc/self/exe", "control_group", "--gtest_also_run_disabled_tests",
              "--gtest_filter=control_group.DISABLED_suspends_in_it", "--gtest_brief=1", nullptr);
    }
    ::_exit(127);
  }
  int ended = 0;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_FALSE(WIFSIGNALED(ended)) << "signal " << WTERMSIG(ended);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
}

}  // namespace
}  // namespace stillmap::checkpoint
