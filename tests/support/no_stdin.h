// A process without standard input, as some services are.
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace stillmap::testing {

// While it exists, the descriptor 0 is free, and the next file that is opened gets it.
class no_stdin {
 public:
  no_stdin() : before_(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)) {
    ::close(STDIN_FILENO);
  }
  ~no_stdin() {
    if (before_ < 0) return;
    ::dup2(before_, STDIN_FILENO);
    ::close(before_);
  }
  no_stdin(const no_stdin &) = delete;
  no_stdin &operator=(const no_stdin &) = delete;

 private:
  const int before_;
};

}  // namespace stillmap::testing
