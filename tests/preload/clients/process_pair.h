// Two processes of a client that talk to each other: each has a context of its own.
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "tests/preload/clients/semantics.h"

namespace client {

// One end. A side that has ended, or says something else, ends the other one.
class conversation {
 public:
  explicit conversation(int fd) : fd_(fd) {}
  template <class T>
  void say(const T &what) const {
    if (::write(fd_, &what, sizeof what) != sizeof what) give_up("cannot say");
  }
  template <class T>
  T hear() const {
    T what{};
    if (::recv(fd_, &what, sizeof what, MSG_WAITALL) != sizeof what) give_up("cannot hear");
    return what;
  }
  // Both have come so far.
  void meet(int point) const {
    say(point);
    if (hear<int>() != point) give_up("not the same point");
  }
  int fd() const { return fd_; }

 private:
  [[noreturn]] static void give_up(const char *why) {
    std::fprintf(stderr, "process %d: %s\n", static_cast<int>(::getpid()), why);
    std::_Exit(1);
  }
  int fd_;
};

using side = int (*)(conversation &with);

inline int exit_status(pid_t child) {
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs both, and returns 0 if both do. The exporter is a child: it may die, with this status.
inline int run_pair(side exporter, side importer, int exporter_status = 0) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    conversation with(ends[1]);
    const int result = exporter(with);
    std::fflush(nullptr);
    std::_Exit(result);
  }
  ::close(ends[1]);
  conversation with(ends[0]);
  const int result = importer(with);
  ::close(ends[0]);
  const int status = exit_status(child);
  if (status != exporter_status) std::fprintf(stderr, "the exporter: %d\n", status);
  return result != 0 || status != exporter_status;
}

}  // namespace client
