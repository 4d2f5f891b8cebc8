#include "tests/system/sharing/task_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

extern char **environ;

namespace stillmap::testing {
namespace {

constexpr const char *mark = "REPORT ";

std::string variable(const char *name) {
  const char *const text = std::getenv(name);
  return text != nullptr ? text : "";
}

}  // namespace

std::string task_role() {
  return variable("STILLMAP_TASK_ROLE");
}
std::string shared_name() {
  return variable("STILLMAP_TASK_NAME");
}

task_process::task_process(const std::string &role, const std::string &name,
                           const std::string &machine) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  output_ = ends[0];
  const auto *const test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string filter =
      std::string("--gtest_filter=") + test->test_suite_name() + '.' + test->name();
  std::vector<std::string> words;
  for (char **e = environ; *e != nullptr; ++e) {
    bool ours = true;  // it reports to this process only, and is no shard
    for (const char *start : {"GTEST_", "XML_OUTPUT_FILE=", "TEST_TOTAL_SHARDS=", "TEST_SHARD_",
                              "TESTBRIDGE_TEST_ONLY=", "TEST_PREMATURE_EXIT_FILE=", "HOSTCUDA="}) {
      ours = ours && std::strncmp(*e, start, std::strlen(start)) != 0;
    }
    if (ours) words.push_back(*e);
  }
  words.push_back("STILLMAP_TASK_ROLE=" + role);
  words.push_back("STILLMAP_TASK_NAME=" + name);
  words.push_back("HOSTCUDA=profile=h200,machine=" + name + "," + machine);
  std::vector<char *> environment;
  for (std::string &w : words) environment.push_back(w.data());
  environment.push_back(nullptr);
  char self[] = "/proc/self/exe";
  char *arguments[] = {self, filter.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const int failed =
      ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failed != 0) throw std::runtime_error("posix_spawn");
}

task_process::~task_process() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(output_);
}

std::string task_process::report() {
  std::string said;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(output_, buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<std::size_t>(n));
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  const std::size_t at = said.rfind(mark);
  if (at == std::string::npos) return "ended with status " + std::to_string(status) + ": " + said;
  const std::size_t begin = at + std::strlen(mark);
  return said.substr(begin, said.find('\n', begin) - begin);
}

void report_and_end(const std::string &line) {
  std::printf("\n%s%s\n", mark, line.c_str());
  std::fflush(stdout);
  ::_exit(0);
}

}  // namespace stillmap::testing
