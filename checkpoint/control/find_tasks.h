// Finds the control sockets of a machine's processes. docs/control.md
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/base/error.h"

namespace stillmap::control {

struct found_tasks {
  std::vector<std::string> sockets;  // addresses of control servers, ordered
  std::size_t other_sockets = 0;     // in the folders
};

// By their names, which end in "control", because connecting to a socket of another kind may disturb the process there:
// abstract ones that begin with "@stillmap", on which a process of this network namespace listens, and those in one of
// the folders.
// Errors:  the system's (a folder cannot be read: the subject is its path).
// Threads: safe. Cost: reads /proc/net/unix and the folders; connects to nothing.
result<found_tasks> find_tasks(std::span<const std::string> folders = {});

}  // namespace stillmap::control
