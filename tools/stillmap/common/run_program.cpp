#include "tools/stillmap/common/run_program.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <system_error>

namespace stillmap::tool {
namespace {

std::string_view name_of(std::string_view variable) {
  return variable.substr(0, variable.find('='));
}

}  // namespace

outcome<int> run_program(const std::vector<std::string> &program,
                         const std::vector<std::string> &variables) {
  std::vector<char *> arguments, all;
  for (const std::string &a : program) arguments.push_back(const_cast<char *>(a.c_str()));
  arguments.push_back(nullptr);
  for (char **v = environ; *v != nullptr; ++v) {
    const auto same = [&](const std::string &ours) { return name_of(ours) == name_of(*v); };
    if (std::none_of(variables.begin(), variables.end(), same)) all.push_back(*v);
  }
  for (const std::string &v : variables) all.push_back(const_cast<char *>(v.c_str()));
  all.push_back(nullptr);

  struct sigaction ignore = {}, interrupt = {}, quit = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGINT, &ignore, &interrupt);
  ::sigaction(SIGQUIT, &ignore, &quit);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t usual;
  ::sigemptyset(&usual);
  ::sigaddset(&usual, SIGINT);
  ::sigaddset(&usual, SIGQUIT);
  ::posix_spawnattr_setsigdefault(&attributes, &usual);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t child = 0;
  const int failed =
      ::posix_spawnp(&child, arguments[0], nullptr, &attributes, arguments.data(), all.data());
  ::posix_spawnattr_destroy(&attributes);
  int status = 0;
  if (failed == 0) {
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  ::sigaction(SIGINT, &interrupt, nullptr);
  ::sigaction(SIGQUIT, &quit, nullptr);
  if (failed != 0) {
    return fail(
        failed == ENOENT ? exit_not_found : exit_failed,
        fmt::format("cannot start {}: {}", program[0], std::generic_category().message(failed)));
  }
  return status;
}

std::string end_text(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace stillmap::tool
