#include "tests/system/conformance/child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "tests/system/conformance/conformance.h"

extern char **environ;

namespace stillmap::conformance {
namespace {

constexpr const char *prefix = "STILLMAP_CONFORMANCE_CHILD";
constexpr std::chrono::seconds longest_run{120};  // a hanging driver must not hang the suite

// The child reports to its parent alone: not into the parent's XML file, and not as a shard of it.
bool belongs_to_parent(const std::string &variable) {
  for (const char *start : {"GTEST_", "XML_OUTPUT_FILE=", "TEST_TOTAL_SHARDS=", "TEST_SHARD_",
                            "TESTBRIDGE_TEST_ONLY=", "TEST_PREMATURE_EXIT_FILE=", prefix})
    if (variable.rfind(start, 0) == 0) return true;
  return false;
}

// "HOME" of "HOME=/root".
std::string name_part(const std::string &variable) {
  return variable.substr(0, variable.find('='));
}

std::string own_path() {
  std::array<char, PATH_MAX> path{};
  const ssize_t n = readlink("/proc/self/exe", path.data(), path.size());
  if (n <= 0) throw std::runtime_error("cannot read /proc/self/exe");
  return {path.data(), static_cast<std::size_t>(n)};
}

// Everything the child prints, until it closes its output or the time is over.
std::string drain(int fd, bool *in_time) {
  std::string all;
  const auto deadline = std::chrono::steady_clock::now() + longest_run;
  *in_time = true;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready{fd, POLLIN, 0};
    const int n = left.count() <= 0 ? 0 : poll(&ready, 1, static_cast<int>(left.count()));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      *in_time = false;
      return all;
    }
    std::array<char, 4096> buffer;
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return all;
    all.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

bool in_child() {
  return std::getenv(prefix) != nullptr;
}

std::string child_argument(const std::string &key) {
  const char *value = std::getenv((std::string(prefix) + "_" + key).c_str());
  return value == nullptr ? "" : value;
}

int child_number(const std::string &key) {
  const std::string value = child_argument(key);
  return value.empty() ? -1 : std::atoi(value.c_str());
}

child::child(const std::map<std::string, std::string> &arguments,
             const std::map<std::string, std::string> &environment) {
  const ::testing::TestInfo *test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string program = own_path();
  const std::string filter =
      std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();

  std::vector<std::string> variables;
  for (char **v = environ; *v != nullptr; ++v)
    if (!belongs_to_parent(*v) && environment.count(name_part(*v)) == 0) variables.emplace_back(*v);
  for (const auto &[key, value] : environment) variables.push_back(key + "=" + value);
  variables.push_back(std::string(prefix) + "=1");
  for (const auto &[key, value] : arguments)
    variables.push_back(std::string(prefix) + "_" + key + "=" + value);
  std::vector<char *> envp;
  for (std::string &v : variables) envp.push_back(v.data());
  envp.push_back(nullptr);
  std::string name = program, option = filter, colour = "--gtest_color=no";
  std::array<char *, 4> argv{name.data(), option.data(), colour.data(), nullptr};

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::fflush(nullptr);
  const int failed =
      posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  output_ = ends[0];
  if (failed != 0) {
    close(output_);
    throw std::runtime_error(std::string("cannot start a child: ") + std::strerror(failed));
  }
}

child::~child() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(output_);
}

void child::join() {
  bool in_time = true;
  std::istringstream lines(drain(output_, &in_time));
  if (!in_time) kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;

  std::string skipped, all;
  bool ran = false;
  for (std::string line; std::getline(lines, line);) {
    all += "  | " + line + "\n";
    int number = 0, text = 0;
    if (std::sscanf(line.c_str(), "[ RECORD   ] %d: %n", &number, &text) == 1 && text > 0)
      record(number, line.substr(static_cast<std::size_t>(text)));
    if (line.rfind("[ SKIP     ] ", 0) == 0) skipped = line.substr(13);
    if (line.rfind("[==========] 1 test from", 0) == 0) ran = true;
  }
  if (!in_time) {
    ADD_FAILURE() << "the child did not end within " << longest_run.count() << " s\n" << all;
  } else if (WIFSIGNALED(status)) {
    ADD_FAILURE() << "the child was killed by signal " << WTERMSIG(status) << "\n" << all;
  } else if (WEXITSTATUS(status) != 0 || !ran) {
    ADD_FAILURE() << "the child ended with status " << WEXITSTATUS(status) << "\n" << all;
  } else if (!skipped.empty()) {
    SKIP_BECAUSE(skipped);
  }
}

void send_fd(int socket, int fd) {
  char byte = 'f';
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) throw std::runtime_error("sendmsg failed");
}

int receive_fd(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

}  // namespace stillmap::conformance
