// Which descriptors say something about the end of a process.
#include "stillmap/checkpoint/handoff/internal/process_end.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap::handoff::testing {
namespace {

owned_fd open_pidfd(pid_t pid, unsigned flags) {
  return owned_fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, flags)));
}

TEST(process_end, is_told_by_a_pidfd_of_that_process) {
  const owned_fd own = open_pidfd(::getpid(), 0);
  if (own.get() < 0) GTEST_SKIP() << "the kernel has no pidfd";
  EXPECT_TRUE(is_pidfd_of(own.get(), ::getpid()));
  EXPECT_FALSE(is_pidfd_of(own.get(), ::getppid()));
  EXPECT_FALSE(is_pidfd_of(own.get(), 0));
  const owned_fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(is_pidfd_of(null.get(), ::getpid()));
}

// Regression: it has the process's number and becomes readable when the first thread has ended, which
// the others survive: the sender took back memory that the receiver still used.
TEST(process_end, is_not_told_by_a_pidfd_of_its_first_thread) {
  constexpr unsigned of_thread = O_EXCL;  // PIDFD_THREAD
  const owned_fd first = open_pidfd(::getpid(), of_thread);
  if (first.get() < 0) GTEST_SKIP() << "the kernel has no pidfd of threads (Linux 6.9)";
  EXPECT_FALSE(is_pidfd_of(first.get(), ::getpid()));
}

}  // namespace
}  // namespace stillmap::handoff::testing
