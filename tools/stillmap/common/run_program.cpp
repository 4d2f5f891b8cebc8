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

volatile std::sig_atomic_t running = 0;  // the process that signals are passed on to

void pass_on(int signal) {
  if (running != 0) ::kill(running, signal);
}

// While it exists, SIGTERM and SIGHUP reach the program instead of this process, which waits for it: a service manager
// ends both by one of them. Ctrl-C and Ctrl-\ reach the program from the terminal.
class signals_for_program {
 public:
  // They wait until there is a program.
  signals_for_program() {
    sigset_t waiting;
    ::sigemptyset(&waiting);
    ::sigaddset(&waiting, SIGTERM);
    ::sigaddset(&waiting, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &waiting, &mask_);
    replace(SIGINT, SIG_IGN, interrupt_);
    replace(SIGQUIT, SIG_IGN, quit_);
    replace(SIGTERM, pass_on, terminate_);
    replace(SIGHUP, pass_on, hang_up_);
    if (hang_up_.sa_handler == SIG_IGN) ::sigaction(SIGHUP, &hang_up_, nullptr);  // nohup
  }
  signals_for_program(const signals_for_program &) = delete;
  signals_for_program &operator=(const signals_for_program &) = delete;
  ~signals_for_program() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    ::sigaction(SIGQUIT, &quit_, nullptr);
    ::sigaction(SIGTERM, &terminate_, nullptr);
    ::sigaction(SIGHUP, &hang_up_, nullptr);
    ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
  }

  const sigset_t &mask_before() const { return mask_; }

  // How the process ended.
  int wait_for(pid_t child) const {
    running = child;
    ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
    siginfo_t ended = {};
    while (::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) < 0 &&
           errno == EINTR) {
    }
    running = 0;  // before its id can be another process's
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }

 private:
  static void replace(int signal, void (*handler)(int), struct sigaction &before) {
    struct sigaction now = {};
    now.sa_handler = handler;
    ::sigaction(signal, &now, &before);
  }
  sigset_t mask_ = {};
  struct sigaction interrupt_ = {}, quit_ = {}, terminate_ = {}, hang_up_ = {};
};

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

  const signals_for_program signals;
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t usual;
  ::sigemptyset(&usual);
  ::sigaddset(&usual, SIGINT);
  ::sigaddset(&usual, SIGQUIT);
  ::posix_spawnattr_setsigdefault(&attributes, &usual);
  ::posix_spawnattr_setsigmask(&attributes, &signals.mask_before());
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int failed =
      ::posix_spawnp(&child, arguments[0], nullptr, &attributes, arguments.data(), all.data());
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) {
    return fail(
        failed == ENOENT ? exit_not_found : exit_failed,
        fmt::format("cannot start {}: {}", program[0], std::generic_category().message(failed)));
  }
  return signals.wait_for(child);
}

std::string end_text(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace stillmap::tool
