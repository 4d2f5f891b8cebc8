// stillmap task list: finds control sockets and queries the status of each.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "stillmap/checkpoint/control/status_query.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

namespace fs = std::filesystem;

// How long all of them may take together.
constexpr std::chrono::milliseconds list_timeout{1'000};

// By their names, because connecting to a socket of another kind may disturb the process there.
struct found_sockets {
  std::vector<std::string> control;
  std::size_t others = 0;  // in the folders
};

bool is_control_socket(std::string_view name) {
  return name.ends_with("control");
}

// Abstract names of ours on which a process of this network namespace listens, and sockets in one of
// the folders.
outcome<found_sockets> find_sockets(const std::vector<std::string> &folders) {
  constexpr const char *accepts = "00010000", *stream = "0001";
  found_sockets found;
  std::vector<std::string> &out = found.control;
  std::ifstream in("/proc/net/unix");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string number, references, protocol, flags, type, state, inode, name;
    words >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
    if (flags == accepts && type == stream && name.starts_with("@stillmap") &&
        is_control_socket(name)) {
      out.push_back(name);
    }
  }
  for (const std::string &folder : folders) {
    std::error_code trouble;
    for (const auto &entry : fs::directory_iterator(folder, trouble)) {
      std::error_code ignored;
      if (!entry.is_socket(ignored)) continue;
      if (is_control_socket(entry.path().native())) {
        out.push_back(entry.path().string());
      } else {
        ++found.others;
      }
    }
    if (trouble) {
      const operation_scope scope("task list");
      return fail(make_system_error(trouble.value(), "the folder cannot be read", folder).value());
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return found;
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
      json.nothing("pid").field("error", printable(t.status.error().message())).end();
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
  STILLMAP_ASSIGN_OR_RETURN(const auto sockets, find_sockets(o.folders));
  STILLMAP_ASSIGN_OR_RETURN(auto statuses, control::query_status(sockets.control, list_timeout));
  std::vector<task_found> all;
  std::size_t width = 6;
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    width = std::max(width, sockets.control[i].size());
    all.push_back({sockets.control[i], std::move(statuses[i])});
  }
  if (o.json) {
    print_json(all);
    return exit_ok;
  }
  if (all.empty()) {
    fmt::print("no process listens on a socket @stillmap*control{}\n",
               o.folders.empty() ? "; name the folders of other control sockets"
                                 : ", or *control in the folders");
    print_others(sockets.others);
    return exit_ok;
  }
  fmt::print("{:<{}}  {:>8}  tags      mapped   suspended  request\n", "socket", width, "pid");
  for (const task_found &t : all) {
    if (!t.status) {
      fmt::print("{:<{}}  {:>8}  {}\n", printable(t.socket), width, "-",
                 printable(t.status.error().message()));
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
  print_others(sockets.others);
  return exit_ok;
}

}  // namespace stillmap::tool
