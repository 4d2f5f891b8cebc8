// Runs the CRIU example on machines that allow it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/gpu_test.h"

namespace stillmap::process {
namespace {

std::string program() {
#ifdef STILLMAP_CRIU_EXAMPLE_BUILT
  return STILLMAP_CRIU_EXAMPLE_BUILT;
#else
  return std::filesystem::absolute("examples/criu/criu_round_trip").string();
#endif
}

// CRIU cannot dump the terabytes of shadow memory of a sanitizer.
constexpr bool sanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    true;
#else
    false;
#endif
#else
    false;
#endif

class criu : public stillmap::testing::device_test {};

TEST_F(criu, a_process_is_dumped_killed_restored_and_continues) {
  if (!on_hostcuda()) GTEST_SKIP() << "the example's device memory is hostcuda's";
  if (sanitized) GTEST_SKIP() << "CRIU cannot dump sanitizer shadow memory";
  if (!std::filesystem::is_regular_file(program())) {
    GTEST_SKIP() << "the example is not built here (" << program() << ")";
  }
  std::string output = std::string(::testing::TempDir()) + "/stillmap-criu-test-XXXXXX";
  const int fd = ::mkstemp(output.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  const int exit_status = std::system(("'" + program() + "' >'" + output + "' 2>&1").c_str());
  std::ifstream in(output);
  const std::string printed(std::istreambuf_iterator<char>(in), {});
  ::unlink(output.c_str());
  ASSERT_TRUE(WIFEXITED(exit_status)) << printed;
  if (WEXITSTATUS(exit_status) == 77) {
    const std::size_t at = printed.find("skipped: ");
    ASSERT_NE(at, std::string::npos) << printed;
    GTEST_SKIP() << "CRIU: " << printed.substr(at + 9, printed.find('\n', at) - at - 9);
  }
  ASSERT_EQ(WEXITSTATUS(exit_status), 0) << printed;
  EXPECT_NE(printed.find("\nresumed\n"), std::string::npos) << printed;
  EXPECT_NE(printed.find("pointers between blocks form a cycle"), std::string::npos) << printed;
}

}  // namespace
}  // namespace stillmap::process
