// stillmap top: who has the machine's device memory.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/common/terminal.h"
#include "tools/stillmap/task/request.h"
#include "tools/stillmap/top/screen.h"
#include "tools/stillmap/top/table.h"
#include "tools/stillmap/top/top_command.h"

namespace stillmap::tool {
namespace {

void write(json_writer &json, const task_view &t) {
  json.begin_object().field("socket", t.socket).field("pid", t.process.pid);
  json.field("uid", t.process.uid).field("user", t.process.user).field("program", t.process.name);
  json.field("slurm_job", t.process.job).field("container", t.process.container);
  json.field("pod", t.process.pod).field("state", t.state());
  json.field("held_bytes", t.held).field("mapped_bytes", t.mapped);
  json.field("suspended_bytes", t.suspended).field("published_bytes", t.published);
  json.field("growth_bytes_per_second", t.growth);
  if (t.memory) {
    json.field("live_bytes", t.memory->allocated).field("cached_bytes", t.memory->cached);
    json.field("evictable_bytes", t.memory->evictable);
    t.memory->limit == 0 ? json.nothing("limit_bytes") : json.field("limit_bytes", t.memory->limit);
    json.field("quota", t.memory->quota);
  }
  t.wait ? json.field("waits_for_bytes", t.wait->bytes) : json.nothing("waits_for_bytes");
  json.begin_array("asked_pids");
  for (const std::uint32_t pid : t.wait ? t.wait->asked : std::vector<std::uint32_t>())
    json.element(pid);
  json.end();
  job_json(json, t.job);
  json.end();
}

std::string as_json(const machine_view &view) {
  json_writer json;
  json.begin_object().begin_array("devices");
  for (const device_view &d : view.devices) {
    json.begin_object().field("uuid", d.uuid).field("name", d.name);
    json.field("total_bytes", d.total).field("used_bytes", d.used);
    json.field("others_bytes", d.others).field("other_processes", d.other_processes);
    json.begin_array("tasks");
    for (const task_view &t : d.tasks) write(json, t);
    json.end().end();
  }
  json.end().begin_array("without_device");
  for (const task_view &t : view.without_device) write(json, t);
  return json.end().end().text();
}

void print(const machine_view &view) {
  const terminal t = terminal_of(stdout);
  // A file has lines of any length.
  const std::size_t width = t.tty ? static_cast<std::size_t>(t.width) : SIZE_MAX;
  for (const table_line &line : table_of(view, width, t.utf8)) fmt::print("{}\n", line.text);
  if (view.devices.empty() && view.without_device.empty()) {
    fmt::print("no GPU is known to NVML, and no process has a control socket\n");
  }
}

}  // namespace

outcome<exit_status> run_top(const top_options &o) {
  if (!o.once && !o.json) {
    if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0)
      return fail(exit_usage, "standard input and output are no terminal: use --once or --json");
    return show_screen(o);
  }
  STILLMAP_ASSIGN_OR_RETURN(auto filters, filters_of(o.filters));
  machine_watch watch(o.folders, answer_time(o.interval), std::move(filters));
  STILLMAP_ASSIGN_OR_RETURN(machine_view view, watch.look());
  sort_tasks(view, sort_key_of(o.sort));
  o.json ? fmt::print("{}", as_json(view)) : print(view);
  return exit_ok;
}

std::chrono::milliseconds answer_time(double interval) {
  return std::min(std::chrono::milliseconds(1000), milliseconds_of(interval));
}

void add_top_command(command &root) {
  const auto [c, o] = root.add("top", run_top,
                               "Shows who has the machine's device memory. For each device: the "
                               "tasks with a control socket, and what others have. "
                               "Held is what the driver says that the process has on the device; "
                               "live and cached is what the task's "
                               "allocator says. Keys: up and down select a task, Enter shows all "
                               "about it, s suspends and r resumes it, < and > "
                               "change the order, q leaves.");
  c.arguments(o.folders, "DIR", "folders with control sockets, beside the abstract ones");
  c.texts("--filter", o.filters, "FILTER", "only tasks that match, as of stillmap task list");
  c.flag("--once", o.once, "print one table and end");
  c.json(o.json);
  c.text("--sort", o.sort, sort_keys, "the order of the tasks of a device (default: held)");
  c.number("--interval", o.interval, 0.1, 3600.0, "SECONDS",
           "how long from one look to the next (default: 1)");
}

}  // namespace stillmap::tool
