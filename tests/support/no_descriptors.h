// A process that has used up its file descriptors.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace stillmap::testing {

// While it exists, no file descriptor can be opened: calls that would open one fail with EMFILE.
class no_descriptors {
 public:
  no_descriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int next = ::dup(STDERR_FILENO);
    ::close(next);
    const rlimit limit{static_cast<rlim_t>(next), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~no_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  no_descriptors(const no_descriptors &) = delete;
  no_descriptors &operator=(const no_descriptors &) = delete;

 private:
  rlimit before_{};
};

}  // namespace stillmap::testing
