// The path of a listening Unix socket. Between finding that a socket is a dead process's and removing its
// name, another process may do the same and take the name: so whoever binds or removes a path has its
// directory locked (flock).
#pragma once

#include <chrono>
#include <string>

#include "stillmap/vmm/error.h"
#include "stillmap/vmm/internal/fork_closed_fd.h"

namespace stillmap::handoff {

// How long to wait for another process that has the directory locked.
constexpr std::chrono::milliseconds directory_lock_timeout{2'000};

// Locks the directory of `path` until the descriptor is closed.
// Errors: busy (another process has had it locked for directory_lock_timeout), the system's; the
//         subject is the directory.
result<fork_closed_fd> lock_directory_of(const std::string &path);

// Removes a socket that no process has open: its process has died. False: `path` is anything else.
// Requires: the directory is locked.
bool remove_stale_socket(const std::string &path);

}  // namespace stillmap::handoff
