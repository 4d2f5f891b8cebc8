#include "tests/checkpoint/handoff/processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>

#include "tests/support/spawned_test.h"

namespace stillmap::handoff::testing {
namespace {

constexpr const char *mark = "VERDICT ";

using stillmap::testing::environment_variable;

}  // namespace

std::string part() {
  return environment_variable("STILLMAP_HANDOFF_PART");
}
std::string meeting_place() {
  return environment_variable("STILLMAP_HANDOFF_PLACE");
}

bool is_told_to_die(step s) {
  return environment_variable("STILLMAP_HANDOFF_DIES") == std::to_string(static_cast<int>(s));
}

void die_if_told(step s) {
  if (is_told_to_die(s)) ::raise(SIGKILL);
}

void note_event(const std::string &what, const std::string &end) {
  const std::string path = environment_variable("STILLMAP_MODEL_EVENTS");
  if (!path.empty()) std::ofstream(path, std::ios::app) << what + ' ' + end + '\n';
}

other_process::other_process(const std::string &part, const std::string &where, int dies_at)
    : pid_(stillmap::testing::spawn_this_test(
          {"STILLMAP_HANDOFF_PART=" + part, "STILLMAP_HANDOFF_PLACE=" + where,
           "STILLMAP_HANDOFF_DIES=" + std::to_string(dies_at)},
          output_)) {}

other_process::~other_process() {
  // A test that ends by an exception asks for no verdict.
  if (output_ >= 0 && std::uncaught_exceptions() != 0) {
    while (listen(0)) {
    }
    std::fprintf(stderr, "the other process has said: %s\n", said_.c_str());
  }
  if (output_ >= 0) ::close(output_);
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

// Reads output for at most `wait` milliseconds. False: there was none.
bool other_process::listen(int wait) {
  pollfd p{output_, POLLIN, 0};
  if (::poll(&p, 1, wait) <= 0) return false;
  char buffer[4096];
  const ssize_t n = ::read(output_, buffer, sizeof buffer);
  if (n <= 0) return false;
  said_.append(buffer, static_cast<std::size_t>(n));
  return true;
}

std::string other_process::last_verdict() const {
  // Whole lines only.
  const std::size_t line = said_.rfind('\n');
  const std::size_t at = said_.rfind(mark, line);
  if (line == std::string::npos || at == std::string::npos) return "no verdict: " + said_;
  const std::size_t from = at + std::strlen(mark);
  return said_.substr(from, said_.find('\n', from) - from);
}

std::string other_process::verdict() {
  while (listen(60'000)) {  // after 60 s of silence the destructor kills it
  }
  int exit_status = 0;
  const bool ended = ::waitpid(pid_, &exit_status, 0) == pid_;
  pid_ = -1;
  if (ended && WIFSIGNALED(exit_status) && WTERMSIG(exit_status) == SIGKILL) return "killed";
  return last_verdict();
}

std::string other_process::verdict_so_far(const std::string &wanted) {
  while (last_verdict() != wanted && listen(20'000)) {
  }
  return last_verdict();
}

std::string other_process::verdict_that_begins(const std::string &with) {
  while (last_verdict().rfind(with, 0) != 0 && listen(20'000)) {
  }
  return last_verdict();
}

std::string other_process::said(std::size_t round) {
  const std::string start = std::to_string(round) + ": ";
  const std::string all = verdict_that_begins(start);
  return all.rfind(start, 0) == 0 ? all.substr(start.size()) : all;
}

bool other_process::has_said(const std::string &what) {
  while (listen(50)) {
  }
  return last_verdict() == what;
}

void say(std::size_t round, const std::string &what) {
  std::printf("\n%s%zu: %s\n", mark, round, what.c_str());
  std::fflush(stdout);
}

void say_and_end(const std::string &verdict) {
  std::printf("\n%s%s\n", mark, verdict.c_str());
  std::fflush(nullptr);
  ::_exit(0);  // without cleaning up, as a killed process
}

}  // namespace stillmap::handoff::testing
