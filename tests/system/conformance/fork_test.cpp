// A forked child of a process that has initialised the driver.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

#include "tests/system/conformance/child.h"
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class forked : public driver_test {};

TEST_F(forked, a69_child_is_not_initialized) {
  IN_A_PROCESS_OF_ITS_OWN();
  const auto in_fork = [](const std::string &label, const std::function<CUresult()> &call) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      alarm(30);  // a driver that waits for its parent's threads would wait for ever
      const CUresult got = call();
      _exit(got < 255 ? static_cast<int>(got) : 255);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    ASSERT_TRUE(WIFEXITED(status)) << label << ": ended by signal " << WTERMSIG(status);
    expect_code(69, label + " in a forked child", static_cast<CUresult>(WEXITSTATUS(status)),
                {CUDA_ERROR_NOT_INITIALIZED});
  };
  in_fork("cuCtxGetCurrent", [] {
    CUcontext context = nullptr;
    return cu().CtxGetCurrent(&context);
  });
  in_fork("cuMemAlloc", [] {
    CUdeviceptr at = 0;
    return cu().MemAlloc(&at, 4096);
  });
  in_fork("cuInit", [] { return cu().Init(0); });
  // The parent is none the worse.
  allocated memory(64 * kib);
  write_pattern(memory.at, 64 * kib, 69);
  EXPECT_TRUE(holds_pattern(memory.at, 64 * kib, 69));
}

}  // namespace
}  // namespace stillmap::conformance
