#include "tests/system/crash/kill_after.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stillmap::testing {

bool kill_after(std::size_t n, const std::function<bool()> &work, bool &forbidden) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(3);
    raise(SIGSTOP);
    _exit(work() ? 0 : 4);
  }
  int wait_status = 0;
  waitpid(child, &wait_status, 0);
  if (WIFEXITED(wait_status)) {
    forbidden = WEXITSTATUS(wait_status) == 3;
    EXPECT_TRUE(forbidden);
    return true;
  }
  ptrace(PTRACE_SETOPTIONS, child, nullptr,
         PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE);
  pid_t stopped = child;
  int signal = 0;
  for (std::size_t i = 0; i < n;) {
    ptrace(PTRACE_SYSCALL, stopped, nullptr, signal);
    stopped = waitpid(-1, &wait_status, __WALL);
    if (stopped < 0) return true;
    signal = 0;
    if (WIFEXITED(wait_status) || WIFSIGNALED(wait_status)) {
      if (stopped != child) {  // a thread that is done
        stopped = waitpid(-1, &wait_status, __WALL);
        if (stopped < 0) return true;
        continue;
      }
      EXPECT_TRUE(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) << wait_status;
      return true;
    }
    if (WSTOPSIG(wait_status) == (SIGTRAP | 0x80)) {
      ++i;
    } else if (WSTOPSIG(wait_status) != SIGTRAP && WSTOPSIG(wait_status) != SIGSTOP) {
      signal = WSTOPSIG(wait_status);
    }
  }
  ::kill(child, SIGKILL);
  // Its threads too, or waitpid does not report the end of the process.
  for (pid_t gone = 0; gone >= 0;) {
    gone = waitpid(-1, &wait_status, __WALL);
    if (gone == child && (WIFSIGNALED(wait_status) || WIFEXITED(wait_status))) break;
  }
  return false;
}

}  // namespace stillmap::testing
