#include "tests/checkpoint/handoff/processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

extern char **environ;

namespace stillmap::handoff::testing {
namespace {

constexpr const char *mark = "VERDICT ";

std::string variable(const char *name) {
  const char *const text = std::getenv(name);
  return text != nullptr ? text : "";
}

}  // namespace

std::string part() {
  return variable("STILLMAP_HANDOFF_PART");
}
std::string meeting_place() {
  return variable("STILLMAP_HANDOFF_PLACE");
}

bool is_told_to_die(step s) {
  return variable("STILLMAP_HANDOFF_DIES") == std::to_string(static_cast<int>(s));
}

void die_if_told(step s) {
  if (is_told_to_die(s)) ::raise(SIGKILL);
}

void note_event(const std::string &what, const std::string &end) {
  const std::string path = variable("STILLMAP_MODEL_EVENTS");
  if (!path.empty()) std::ofstream(path, std::ios::app) << what + ' ' + end + '\n';
}

other_process::other_process(const std::string &part, const std::string &where, int dies_at) {
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
                              "TESTBRIDGE_TEST_ONLY=", "TEST_PREMATURE_EXIT_FILE="}) {
      ours = ours && std::strncmp(*e, start, std::strlen(start)) != 0;
    }
    if (ours) words.push_back(*e);
  }
  words.push_back("STILLMAP_HANDOFF_PART=" + part);
  words.push_back("STILLMAP_HANDOFF_PLACE=" + where);
  words.push_back("STILLMAP_HANDOFF_DIES=" + std::to_string(dies_at));
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

other_process::~other_process() {
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
