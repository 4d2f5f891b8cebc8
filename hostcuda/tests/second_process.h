// Runs a test of this program in a second process.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

namespace hostcuda_tests {

// Runs one test of this program in a second process, with additional environment variables. Returns
// its exit status, or -1. `loud`: prints the failures of that process.
inline int run_again(const char *test, const std::vector<std::string> &variables,
                     bool loud = false) {
  // Built before fork, because the child of a threaded process may only call exec.
  std::vector<char *> env;
  for (char **e = environ; *e != nullptr; ++e)
    if (std::strncmp(*e, "GTEST_", 6) != 0 && std::strncmp(*e, "XML_OUTPUT", 10) != 0 &&
        std::strncmp(*e, "TEST_", 5) != 0)
      env.push_back(*e);
  for (const std::string &v : variables) env.push_back(const_cast<char *>(v.c_str()));
  env.push_back(nullptr);
  const std::string filter = std::string("--gtest_filter=") + test;
  const char *args[] = {"hostcuda_test", filter.c_str(), "--gtest_brief=1", nullptr};
  const pid_t child = fork();
  if (child == 0) {
    const int null = open("/dev/null", O_WRONLY);
    if (!loud) dup2(null, 1);
    execve("/proc/self/exe", const_cast<char **>(args), env.data());
    _exit(99);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace hostcuda_tests
