// Which tasks a command line means: by what their processes are.
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
// Whether the text has the form of one.
bool is_filter(const std::string &text);
outcome<task_filter> filter_of(const std::string &text);
outcome<std::vector<task_filter>> filters_of(const std::vector<std::string> &texts);
bool matches_all(const std::vector<task_filter> &filters, const process_identity &p);

}  // namespace stillmap::tool
