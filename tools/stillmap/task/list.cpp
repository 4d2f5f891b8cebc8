// stillmap task list: finds control sockets and queries the status of each.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "stillmap/checkpoint/control/find_tasks.h"
#include "stillmap/checkpoint/control/status_query.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/machine/task_filter.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

// How long all of them may take together.
constexpr std::chrono::milliseconds list_timeout{1'000};

// Of a process that cannot be told, nothing matches.
bool matches(const std::vector<task_filter> &filters,
             const std::optional<checkpoint::peer_credentials> &server) {
  return filters.empty() || (server && matches_all(filters, identify(server->pid)));
}

struct task_found {
  std::string socket;
  result<control::process_status> status;
};

void print_others(std::size_t sockets) {
  if (sockets == 0) return;
  fmt::print(
      "{} other socket{} in the folders: only those whose names end in 'control' are asked\n",
      sockets, sockets == 1 ? "" : "s");
}

void print_json(const std::vector<task_found> &all) {
  json_writer json;
  json.begin_object().begin_array("tasks");
  for (const task_found &t : all) {
    json.begin_object().field("socket", t.socket);
    if (!t.status) {
      json.nothing("pid").field("error", failure(t.status.error()).line).end();
      continue;
    }
    json.field("pid", t.status->pid).field("device", t.status->device);
    json.begin_array("tags");
    for (const control::tag_status &tag : t.status->tags) {
      json.begin_object().field("tag", tag.tag).field("mapped_bytes", tag.mapped_bytes);
      json.field("suspended_bytes", tag.suspended_bytes).end();
    }
    json.end().field("omitted_tags", t.status->omitted_tags);
    json.field("omitted_mapped_bytes", t.status->omitted_mapped_bytes);
    json.field("omitted_suspended_bytes", t.status->omitted_suspended_bytes);
    job_json(json, t.status->job);
    json.end();
  }
  fmt::print("{}", json.end().end().text());
}

}  // namespace

outcome<exit_status> run_task_list(const task_list_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto filters, filters_of(o.filters));
  STILLMAP_ASSIGN_OR_RETURN(const auto found, control::find_tasks(o.folders));
  STILLMAP_ASSIGN_OR_RETURN(auto statuses, control::query_status(found.sockets, list_timeout));
  std::vector<task_found> all;
  std::size_t width = 6;
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    if (!matches(filters, statuses[i].server)) continue;
    width = std::max(width, found.sockets[i].size());
    all.push_back({found.sockets[i], std::move(statuses[i].status)});
  }
  if (o.json) {
    print_json(all);
    return exit_ok;
  }
  if (all.empty() && !found.sockets.empty()) {
    fmt::print("no task matches; {}\n", counted(found.sockets.size(), "other task"));
    return exit_ok;
  }
  if (all.empty()) {
    fmt::print("no process listens on a socket @stillmap*control{}\n",
               o.folders.empty() ? "; name the folders of other control sockets"
                                 : ", or *control in the folders");
    print_others(found.other_sockets);
    return exit_ok;
  }
  fmt::print("{:<{}}  {:>8}  tags      mapped   suspended  request\n", "socket", width, "pid");
  for (const task_found &t : all) {
    if (!t.status) {
      fmt::print("{:<{}}  {:>8}  {}\n", printable(t.socket), width, "-",
                 failure(t.status.error()).line);
      continue;
    }
    std::uint64_t mapped = t.status->omitted_mapped_bytes;
    std::uint64_t suspended = t.status->omitted_suspended_bytes;
    for (const control::tag_status &tag : t.status->tags) {
      mapped += tag.mapped_bytes;
      suspended += tag.suspended_bytes;
    }
    const std::string job = job_text(t.status->job);
    fmt::print("{:<{}}  {:>8}  {:>4}  {:>10}  {:>10}  {}\n", printable(t.socket), width,
               t.status->pid, t.status->tags.size() + t.status->omitted_tags, format_bytes(mapped),
               format_bytes(suspended), job.empty() ? "-" : job);
  }
  print_others(found.other_sockets);
  return exit_ok;
}

}  // namespace stillmap::tool
