// The path of a listening Unix socket. Between finding that a socket is a dead process's and removing its
// name, another process may do the same and take the name: so whoever binds a path has it locked.
#pragma once

#include <chrono>
#include <string>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/fork_closed_fd.h"

namespace stillmap::checkpoint {

// How long to wait for another process that has the path locked.
constexpr std::chrono::milliseconds path_lock_timeout{2'000};

// The file PATH.lock, created and locked (flock), and removed in the end. Only its user can open it, and
// so lock it: a directory, in contrast, can be locked by everybody who can read it.
class path_lock {
 public:
  // Errors: busy (another process has had it locked, or another user has owned it, for
  //         path_lock_timeout), the system's; the subject is the file.
  static result<path_lock> take(const std::string &path);
  path_lock(path_lock &&) noexcept = default;
  path_lock &operator=(path_lock &&) = delete;
  ~path_lock();

 private:
  path_lock(fork_closed_fd file, std::string name) noexcept
      : file_(std::move(file)), name_(std::move(name)) {}
  fork_closed_fd file_;
  std::string name_;
};

// Removes a socket that no process has open: its process has died. False: `path` is anything else.
// Requires: the path is locked.
bool remove_stale_socket(const std::string &path);

}  // namespace stillmap::checkpoint
