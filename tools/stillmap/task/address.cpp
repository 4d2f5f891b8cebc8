#include "tools/stillmap/task/address.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "stillmap/checkpoint/control/find_tasks.h"
#include "stillmap/checkpoint/control/status_query.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/machine/listening_process.h"
#include "tools/stillmap/machine/task_filter.h"

namespace stillmap::tool {
namespace {

bool is_address(const std::string &text) {
  std::error_code ignored;
  return text.starts_with('@') || text.find('/') != std::string::npos || !is_filter(text) ||
         std::filesystem::exists(text, ignored);
}

}  // namespace

outcome<std::vector<std::string>> resolve_tasks(const std::string &text) {
  if (is_address(text)) return std::vector<std::string>{text};
  STILLMAP_ASSIGN_OR_RETURN(const task_filter filter, filter_of(text));
  STILLMAP_ASSIGN_OR_RETURN(const auto all, control::find_tasks());
  STILLMAP_ASSIGN_OR_RETURN(const auto asked,
                            control::query_status(all.sockets, std::chrono::seconds(1)));
  std::vector<std::string> found;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    // One whose backlog is full, as of a process that was stopped, is meant all the same: it does not answer.
    const pid_t pid = asked[i].server ? asked[i].server->pid : listening_process(all.sockets[i]);
    if (pid > 0 && filter.matches(identify(pid))) found.push_back(all.sockets[i]);
  }
  if (!found.empty()) return found;
  return fail(exit_not_found,
              fmt::format("no task is {}: `stillmap task list` has those that are there", text));
}

outcome<std::string> resolve_task(const std::string &text) {
  STILLMAP_ASSIGN_OR_RETURN(auto found, resolve_tasks(text));
  if (found.size() == 1) return std::move(found.front());
  return fail(exit_usage, fmt::format("{} tasks are {}: name one of {}", found.size(), text,
                                      join(found, ", ")));
}

}  // namespace stillmap::tool
