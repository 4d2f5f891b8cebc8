// Runs a test again in a new process: for a test that breaks its context, that needs a process
// without cuInit, or that needs a second process. The child inherits no driver state except what
// the test passes.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>

namespace stillmap::conformance {

// Whether this process was started by a test of another.
bool in_child();

// What the parent handed to the child under `key`; empty if nothing. child_number: -1 if nothing.
std::string child_argument(const std::string &key);
int child_number(const std::string &key);

class child {
 public:
  // Starts the running test again, with these environment variables in place of the inherited
  // ones. File descriptors without FD_CLOEXEC are inherited.
  explicit child(const std::map<std::string, std::string> &arguments = {},
                 const std::map<std::string, std::string> &environment = {});
  child(const child &) = delete;
  child &operator=(const child &) = delete;
  ~child();  // ends it if nobody waited

  // Waits, prints its output, takes over its records, its skip, and its failure, also by a signal.
  void join();

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

// First line of a test whose whole body belongs into a process of its own.
#define IN_A_PROCESS_OF_ITS_OWN()        \
  if (!in_child()) {                     \
    ::stillmap::conformance::child self; \
    self.join();                         \
    return;                              \
  }

// Passing a file descriptor over a Unix socket. receive_fd returns -1 when none came.
void send_fd(int socket, int fd);
int receive_fd(int socket);

}  // namespace stillmap::conformance
