#include "tests/tool/command_test.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace stillmap::testing {

namespace fs = std::filesystem;

std::string ran::last_line() const {
  const std::size_t end = out.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t before = out.rfind('\n', end);
  return out.substr(before == std::string::npos ? 0 : before + 1, end - before);
}

std::string content(const fs::path &p) {
  std::ifstream in(p, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string command_test::program() {
  if (const char *given = std::getenv("STILLMAP_TOOL")) return fs::absolute(given).string();
#ifdef STILLMAP_TOOL_BUILT
  return STILLMAP_TOOL_BUILT;
#else
  return fs::absolute("tools/stillmap").string();
#endif
}

void command_test::SetUp() {
  device_test::SetUp();
  if (IsSkipped()) return;
  folder_ = fs::path(::testing::TempDir()) / ("stillmap_cli_" + std::to_string(::getpid()));
  fs::create_directories(folder_);
  if (!fs::is_regular_file(program())) {
    GTEST_SKIP() << "the command is not here (" << program() << "): STILLMAP_TOOL says where";
  }
}

void command_test::TearDown() {
  if (!folder_.empty()) fs::remove_all(folder_);
  device_test::TearDown();
}

ran command_test::run(const std::string &arguments, const std::string &before) const {
  const fs::path out = folder_ / "stdout", err = folder_ / "stderr";
  const std::string line = before + " '" + program() + "' " + arguments + " >'" + out.string() +
                           "' 2>'" + err.string() + "'";
  const int status = std::system(("env " + line).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(out), content(err)};
}

void command_test::expect_failure(const std::string &arguments, int status,
                                  const std::string &says) const {
  const ran r = run(arguments);
  EXPECT_EQ(r.status, status) << arguments << "\n" << r.err;
  EXPECT_EQ(r.out, "") << arguments;
  EXPECT_EQ(r.err.rfind("stillmap: ", 0), 0u) << r.err;
  EXPECT_NE(r.err.find(says), std::string::npos) << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
}

}  // namespace stillmap::testing
