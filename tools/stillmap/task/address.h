// Which control socket a command line means: by its address, or by its process.
#pragma once

#include <string>
#include <vector>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// The address of the one task that `text` means: an address is taken as it is, and so is a file of that name; a filter
// is looked up among the abstract sockets of this machine, by the process that listens on each as the kernel says.
// Errors: exit_not_found (no task is that), exit_usage (several are: the line names them).
outcome<std::string> resolve_task(const std::string &text);
// The addresses of all of them, at least one.
outcome<std::vector<std::string>> resolve_tasks(const std::string &text);

}  // namespace stillmap::tool
