// The example that CRIU saves and restores, wherever the machine lets it.
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

// Shadow memory of terabytes is nothing that CRIU is asked to carry.
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

TEST_F(criu, a_process_is_dumped_killed_restored_and_goes_on) {
  if (!on_hostcuda()) GTEST_SKIP() << "the example's device memory is hostcuda's";
  if (sanitized) GTEST_SKIP() << "a sanitizer's memory is not saved";
  if (!std::filesystem::is_regular_file(program())) {
    GTEST_SKIP() << "the example is not built here (" << program() << ")";
  }
  std::string output = std::string(::testing::TempDir()) + "/stillmap-criu-test-XXXXXX";
  const int fd = ::mkstemp(output.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  const int how = std::system(("'" + program() + "' >'" + output + "' 2>&1").c_str());
  std::ifstream in(output);
  const std::string said(std::istreambuf_iterator<char>(in), {});
  ::unlink(output.c_str());
  ASSERT_TRUE(WIFEXITED(how)) << said;
  if (WEXITSTATUS(how) == 77) {
    const std::size_t at = said.find("skipped: ");
    ASSERT_NE(at, std::string::npos) << said;
    GTEST_SKIP() << "CRIU: " << said.substr(at + 9, said.find('\n', at) - at - 9);
  }
  ASSERT_EQ(WEXITSTATUS(how), 0) << said;
  EXPECT_NE(said.find("\nwhole\n"), std::string::npos) << said;
  EXPECT_NE(said.find("pointers between blocks lead around"), std::string::npos) << said;
}

}  // namespace
}  // namespace stillmap::process
