// Which control socket a command line means: by its address, or by its process.
#pragma once

#include <string>
#include <vector>

#include "tools/stillmap/common/outcome.h"
#include "tools/stillmap/machine/process_identity.h"

namespace stillmap::tool {

// The process in the name of a socket, "@stillmap-4711.1.control"; 0: the name does not say.
pid_t pid_in(const std::string &socket);

// What filters accept: "4711" (a process), "job:12" or "job:12.0" (of Slurm), "name:python", "user:ann", "pod:1f3b2c4d",
// "container:3fa9". Errors: exit_usage (none of these).
struct task_filter {
  std::string kind, value;  // "pid", "4711"
  bool matches(const process_identity &p) const;
};
outcome<task_filter> filter_of(const std::string &text);

// The address of the one task that `text` means: an address is taken as it is, and so is a file of that name; a filter
// is looked up among the abstract sockets of this machine.
// Errors: exit_not_found (no task is that), exit_usage (several are: the line names them).
outcome<std::string> resolve_task(const std::string &text);

}  // namespace stillmap::tool
