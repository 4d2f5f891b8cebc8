#include "tools/stillmap/task/address.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>

#include "stillmap/checkpoint/control/find_tasks.h"
#include "stillmap/checkpoint/control/status_query.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

constexpr std::array<const char *, 6> filter_kinds{"pid",  "job", "name",
                                                   "user", "pod", "container"};

bool is_filter(const std::string &text) {
  if (is_number(text)) return true;
  const std::string kind = text.substr(0, text.find(':'));
  return kind.size() != text.size() &&
         std::find(filter_kinds.begin(), filter_kinds.end(), kind) != filter_kinds.end();
}

bool is_address(const std::string &text) {
  std::error_code ignored;
  return text.starts_with('@') || text.find('/') != std::string::npos || !is_filter(text) ||
         std::filesystem::exists(text, ignored);
}

}  // namespace

bool task_filter::matches(const process_identity &p) const {
  if (value.empty()) return false;
  if (kind == "pid") return std::to_string(p.pid) == value;
  if (kind == "job") return p.job == value || p.job.starts_with(value + ".");
  if (kind == "name") return p.name == value.substr(0, 15);  // as long as the kernel keeps it
  if (kind == "user") return p.user == value || std::to_string(p.uid) == value;
  return (kind == "pod" ? p.pod : p.container).starts_with(value);
}

outcome<task_filter> filter_of(const std::string &text) {
  if (is_number(text)) return task_filter{"pid", text};
  const std::size_t colon = text.find(':');
  if (!is_filter(text) || colon + 1 == text.size()) {
    return fail(exit_usage,
                fmt::format("'{}' is no filter: a process id, or job:, name:, user:, pod: or "
                            "container: with a value",
                            text));
  }
  return task_filter{text.substr(0, colon), text.substr(colon + 1)};
}

outcome<std::vector<task_filter>> filters_of(const std::vector<std::string> &texts) {
  std::vector<task_filter> out;
  for (const std::string &text : texts) {
    STILLMAP_ASSIGN_OR_RETURN(out.emplace_back(), filter_of(text));
  }
  return out;
}

bool matches_all(const std::vector<task_filter> &filters, const process_identity &p) {
  return std::all_of(filters.begin(), filters.end(),
                     [&](const task_filter &f) { return f.matches(p); });
}

outcome<std::string> resolve_task(const std::string &text) {
  if (is_address(text)) return text;
  STILLMAP_ASSIGN_OR_RETURN(const task_filter filter, filter_of(text));
  STILLMAP_ASSIGN_OR_RETURN(const auto all, control::find_tasks());
  STILLMAP_ASSIGN_OR_RETURN(const auto asked,
                            control::query_status(all.sockets, std::chrono::seconds(1)));
  std::vector<std::string> found;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (asked[i].server && filter.matches(identify(asked[i].server->pid)))
      found.push_back(all.sockets[i]);
  }
  if (found.empty()) {
    return fail(exit_not_found,
                fmt::format("no task is {}: `stillmap task list` has those that are there", text));
  }
  if (found.size() > 1) {
    return fail(exit_usage, fmt::format("{} tasks are {}: name one of {}", found.size(), text,
                                        join(found, ", ")));
  }
  return found.front();
}

}  // namespace stillmap::tool
