#include "tools/stillmap/machine/task_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

constexpr std::array<const char *, 6> filter_kinds{"pid",  "job", "name",
                                                   "user", "pod", "container"};

}  // namespace

bool is_filter(const std::string &text) {
  if (is_number(text)) return true;
  const std::string kind = text.substr(0, text.find(':'));
  return kind.size() != text.size() &&
         std::find(filter_kinds.begin(), filter_kinds.end(), kind) != filter_kinds.end();
}

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

}  // namespace stillmap::tool
