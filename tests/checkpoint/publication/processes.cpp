#include "tests/checkpoint/publication/processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/support/spawned_test.h"

namespace stillmap::publication::testing {
namespace {

constexpr const char *said_mark = "SAYS ";

using stillmap::testing::environment_variable;

}  // namespace

std::string role() {
  return environment_variable("STILLMAP_PUBLICATION_ROLE");
}
std::string meeting_place() {
  return environment_variable("STILLMAP_PUBLICATION_PLACE");
}
void die_if_told(const char *step) {
  if (environment_variable("STILLMAP_PUBLICATION_DIES") == step) ::raise(SIGKILL);
}

void say(const std::string &line) {
  std::printf("\n%s%s\n", said_mark, line.c_str());
  std::fflush(stdout);
}
void say_and_end(const std::string &line) {
  say(line);
  ::_exit(0);
}
void wait_for_end() {
  for (;;) ::pause();
}

peer_process::peer_process(const std::string &role, const std::string &place,
                           const std::string &machine, const std::string &dies_at)
    : pid_(stillmap::testing::spawn_this_test(
          {"STILLMAP_PUBLICATION_ROLE=" + role, "STILLMAP_PUBLICATION_PLACE=" + place,
           "STILLMAP_PUBLICATION_DIES=" + dies_at, "HOSTCUDA=profile=h200,machine=" + machine},
          output_)) {}

peer_process::~peer_process() {
  kill();
  ::close(output_);
}

void peer_process::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}
void peer_process::stop() {
  ::kill(pid_, SIGSTOP);
}
void peer_process::resume() {
  ::kill(pid_, SIGCONT);
}

std::string peer_process::line() {
  for (;;) {
    if (const std::size_t at = said_.find(said_mark), end = said_.find('\n', at);
        at != std::string::npos && end != std::string::npos) {
      const std::size_t from = at + std::strlen(said_mark);
      std::string out = said_.substr(from, end - from);
      said_.erase(0, end + 1);
      return out;
    }
    pollfd p{output_, POLLIN, 0};
    if (::poll(&p, 1, 60'000) <= 0) return "silent";
    char buffer[4096];
    const ssize_t n = ::read(output_, buffer, sizeof buffer);
    if (n > 0) {
      said_.append(buffer, static_cast<std::size_t>(n));
      continue;
    }
    int how = 0;
    if (pid_ > 0) ::waitpid(pid_, &how, 0);
    pid_ = -1;
    if (WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL) return "killed";
    return "ended: " + said_;
  }
}

}  // namespace stillmap::publication::testing
