// stillmap status: what a process that can be asked holds, and what it is doing.
#include <fmt/format.h>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

struct status_command {
  task_options task;
  bool json = false;
};

const char *state_of(const control::tag_status &t) {
  return t.suspended_bytes == 0 ? (t.mapped_bytes == 0 ? "empty" : "live")
         : t.mapped_bytes == 0  ? "away"
                                : "partly away";
}

std::string as_json(const control::process_status &s) {
  json_writer json;
  json.begin_object().field("pid", static_cast<int>(s.pid)).field("device", s.device);
  json.field("ordinal", s.ordinal).field("page_bytes", s.page_bytes);
  json.field("memory_bytes", s.memory_total).field("free_bytes", s.memory_free);
  json.begin_array("tags");
  for (const control::tag_status &t : s.tags) {
    json.begin_object().field("tag", t.tag).field("state", state_of(t)).field("blocks", t.blocks);
    json.field("reserved_bytes", t.reserved_bytes).field("mapped_bytes", t.mapped_bytes);
    json.field("suspended_bytes", t.suspended_bytes);
    if (t.kept_in) {
      json.field("kept_in", name_of(*t.kept_in));
    } else {
      json.nothing("kept_in");
    }
    json.end();
  }
  json.end().field("more_tags", s.more_tags);
  job_json(json, s.job);
  return json.end().text();
}

void print(const control::process_status &s) {
  fmt::print("process {}: {} (device {}), {} of {} free\n", s.pid, printable(s.device), s.ordinal,
             human(s.memory_free), human(s.memory_total));
  std::size_t width = 3;
  for (const control::tag_status &t : s.tags) width = std::max(width, t.tag.size());
  width = std::min<std::size_t>(width, 40);
  fmt::print("  {:<{}}  blocks      mapped   suspended    reserved  state\n", "tag", width);
  for (const control::tag_status &t : s.tags) {
    fmt::print("  {:<{}}  {:>6}  {:>10}  {:>10}  {:>10}  {}{}\n",
               t.tag.empty() ? "-" : printable(t.tag), width, t.blocks, human(t.mapped_bytes),
               human(t.suspended_bytes), human(t.reserved_bytes), state_of(t),
               t.kept_in ? fmt::format(", {}", name_of(*t.kept_in)) : "");
  }
  if (s.tags.empty()) fmt::print("  nothing\n");
  if (s.more_tags != 0) fmt::print("  and {} more tags\n", s.more_tags);
  if (const std::string busy = job_text(s.job); !busy.empty()) fmt::print("busy: {}\n", busy);
}

outcome<exit_status> run_status(const status_command &o) {
  const auto s = client_of(o.task).status();
  if (!s) return fail(s.error());
  if (o.json) {
    fmt::print("{}\n", as_json(*s));
  } else {
    print(*s);
  }
  return exit_ok;
}

}  // namespace

void add_status(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "status",
      "What a process that runs a control server holds: its tags, what is\nlive and what is "
      "suspended, its device, and what it is busy with.");
  const auto o = std::make_shared<status_command>();
  add_task_options(*c, o->task);
  c->add_flag("--json", o->json, "all of it for programs");
  c->callback([o, &body] { body = [o] { return run_status(*o); }; });
}

}  // namespace stillmap::tool
