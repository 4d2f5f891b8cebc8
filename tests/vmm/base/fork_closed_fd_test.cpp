// Descriptors that a forked child does not have.
#include "stillmap/vmm/base/fork_closed_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <utility>

namespace stillmap {
namespace {

bool descriptor_is_open(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

TEST(fork_closed_fd, is_closed_in_a_forked_child_only) {
  auto first = fork_closed_fd::open("/dev/null", O_RDONLY);
  fork_closed_fd second = std::move(first);
  std::optional gone(fork_closed_fd::open("/dev/null", O_RDONLY));
  second = std::exchange(*gone, std::move(second));  // in a new place, after all moves
  gone.reset();
  const int fd = second.get();
  ASSERT_GE(fd, 0);
  EXPECT_EQ(first.get(), -1);
  const pid_t child = fork();
  if (child == 0) _exit(second.get() == -1 && !descriptor_is_open(fd) ? 0 : 1);
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
  EXPECT_TRUE(descriptor_is_open(fd));
  second = fork_closed_fd();
  EXPECT_FALSE(descriptor_is_open(fd));
}

TEST(fork_closed_fd, says_why_it_is_not_open) {
  const auto none = fork_closed_fd::open("/nowhere/at/all", O_RDONLY);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(none.get(), -1);
}

TEST(fork_closed_fd, knows_whether_the_path_still_leads_to_it) {
  const std::string path = ::testing::TempDir() + "fork_closed_fd", other = path + ".other";
  const auto file = fork_closed_fd::open(path.c_str(), O_CREAT | O_RDWR, 0600);
  ASSERT_GE(file.get(), 0);
  EXPECT_TRUE(file.is_open_at(path.c_str()));
  ASSERT_EQ(::symlink(path.c_str(), other.c_str()), 0);
  EXPECT_FALSE(file.is_open_at(other.c_str()));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_FALSE(file.is_open_at(path.c_str()));
  ASSERT_EQ(::rename(other.c_str(), path.c_str()), 0);
  EXPECT_FALSE(file.is_open_at(path.c_str()));
  ASSERT_EQ(::unlink(path.c_str()), 0);
}

}  // namespace
}  // namespace stillmap
