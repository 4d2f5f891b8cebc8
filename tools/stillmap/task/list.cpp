// stillmap task list: finds control sockets and queries the status of each.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "stillmap/vmm/internal/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

namespace fs = std::filesystem;

// Abstract names of ours on which a process of this network namespace listens, and sockets in one of
// the folders.
outcome<std::vector<std::string>> control_sockets(const std::vector<std::string> &folders) {
  constexpr const char *accepts = "00010000", *stream = "0001";
  std::vector<std::string> out;
  std::ifstream in("/proc/net/unix");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string number, references, protocol, flags, type, state, inode, name;
    words >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
    if (flags == accepts && type == stream && name.starts_with("@stillmap")) out.push_back(name);
  }
  for (const std::string &folder : folders) {
    std::error_code trouble;
    for (const auto &entry : fs::directory_iterator(folder, trouble)) {
      std::error_code ignored;
      if (entry.is_socket(ignored)) out.push_back(entry.path().string());
    }
    if (trouble) {
      return fail(
          make_system_error(trouble.value(), "task list", "the folder cannot be read", folder)
              .value());
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

struct task_found {
  std::string socket;
  result<control::process_status> status;
};

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
    json.end();
    job_json(json, t.status->job);
    json.end();
  }
  fmt::print("{}", json.end().end().text());
}

}  // namespace

outcome<exit_status> run_task_list(const task_list_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto sockets, control_sockets(o.folders));
  std::vector<task_found> all;
  std::size_t width = 6;
  for (const std::string &socket : sockets) {
    width = std::max(width, socket.size());
    control::client_options options;
    options.timeout = std::chrono::seconds(1);
    all.push_back({socket, control::client(socket, options).status()});
  }
  if (o.json) {
    print_json(all);
    return exit_ok;
  }
  if (all.empty()) {
    fmt::print(
        "no process listens on a socket @stillmap*{}\n",
        o.folders.empty() ? "; name the folders of other control sockets" : " or in the folders");
    return exit_ok;
  }
  fmt::print("{:<{}}  {:>8}  tags      mapped   suspended  request\n", "socket", width, "pid");
  for (const task_found &t : all) {
    if (!t.status) {
      fmt::print("{:<{}}  {:>8}  {}\n", printable(t.socket), width, "-",
                 printable(t.status.error().message()));
      continue;
    }
    std::uint64_t mapped = 0, suspended = 0;
    for (const control::tag_status &tag : t.status->tags) {
      mapped += tag.mapped_bytes;
      suspended += tag.suspended_bytes;
    }
    const std::string job = job_text(t.status->job);
    fmt::print("{:<{}}  {:>8}  {:>4}  {:>10}  {:>10}  {}\n", printable(t.socket), width,
               t.status->pid, t.status->tags.size(), format_bytes(mapped), format_bytes(suspended),
               job.empty() ? "-" : job);
  }
  return exit_ok;
}

}  // namespace stillmap::tool
