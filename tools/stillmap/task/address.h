// Which control socket a command line means: by its address, or by its process.
#pragma once

#include <string>
#include <vector>

#include "tools/stillmap/common/outcome.h"
#include "tools/stillmap/machine/process_identity.h"

namespace stillmap::tool {

// What filters accept: "4711" (a process), "job:12" or "job:12.0" (of Slurm), "name:python", "user:ann", "pod:1f3b2c4d",
// "container:3fa9". Errors: exit_usage (none of these).
struct task_filter {
  std::string kind, value;  // "pid", "4711"
  bool matches(const process_identity &p) const;
};
outcome<task_filter> filter_of(const std::string &text);
outcome<std::vector<task_filter>> filters_of(const std::vector<std::string> &texts);
bool matches_all(const std::vector<task_filter> &filters, const process_identity &p);

// The address of the one task that `text` means: an address is taken as it is, and so is a file of that name; a filter
// is looked up among the abstract sockets of this machine, by the process that listens on each as the kernel says.
// Errors: exit_not_found (no task is that), exit_usage (several are: the line names them).
outcome<std::string> resolve_task(const std::string &text);

}  // namespace stillmap::tool
