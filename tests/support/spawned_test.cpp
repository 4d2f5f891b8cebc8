#include "tests/support/spawned_test.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

extern char **environ;

namespace stillmap::testing {

std::string environment_variable(const char *name) {
  const char *const text = std::getenv(name);
  return text != nullptr ? text : "";
}

pid_t spawn_this_test(const std::vector<std::string> &variables, int &output) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  output = ends[0];
  const auto *const test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string filter =
      std::string("--gtest_filter=") + test->test_suite_name() + '.' + test->name();
  // It reports to this process only, and is no shard.
  std::vector<std::string> left_out{
      "GTEST_",      "XML_OUTPUT_FILE=",      "TEST_TOTAL_SHARDS=",
      "TEST_SHARD_", "TESTBRIDGE_TEST_ONLY=", "TEST_PREMATURE_EXIT_FILE="};
  for (const std::string &v : variables) left_out.push_back(v.substr(0, v.find('=') + 1));
  std::vector<std::string> words = variables;
  for (char **e = environ; *e != nullptr; ++e) {
    const std::string word = *e;
    if (std::none_of(left_out.begin(), left_out.end(),
                     [&](const std::string &start) { return word.starts_with(start); })) {
      words.push_back(word);
    }
  }
  std::vector<char *> environment;
  for (std::string &w : words) environment.push_back(w.data());
  environment.push_back(nullptr);
  char self[] = "/proc/self/exe";
  char *arguments[] = {self, filter.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t pid = -1;
  const int failed =
      ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failed != 0) throw std::runtime_error("posix_spawn");
  return pid;
}

}  // namespace stillmap::testing
