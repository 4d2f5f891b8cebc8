#include "tests/system/sharing/task_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/support/spawned_test.h"

namespace stillmap::testing {
namespace {

constexpr const char *mark = "REPORT ";

}  // namespace

std::string task_role() {
  return environment_variable("STILLMAP_TASK_ROLE");
}
std::string shared_name() {
  return environment_variable("STILLMAP_TASK_NAME");
}

task_process::task_process(const std::string &role, const std::string &name,
                           const std::string &machine)
    : pid_(spawn_this_test({"STILLMAP_TASK_ROLE=" + role, "STILLMAP_TASK_NAME=" + name,
                            "HOSTCUDA=profile=h200,machine=" + name + "," + machine},
                           output_)) {}

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
