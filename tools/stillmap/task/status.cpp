// stillmap task status: the memory of a process, and the request that it executes.
#include <fmt/format.h>

#include <algorithm>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

std::string as_json(const control::process_status &s) {
  json_writer json;
  json.begin_object().field("pid", s.pid).field("device", s.device).field("ordinal", s.ordinal);
  json.field("page_bytes", s.page_bytes).field("memory_bytes", s.memory_total);
  json.field("free_bytes", s.memory_free).begin_array("tags");
  for (const control::tag_status &t : s.tags) {
    json.begin_object().field("tag", t.tag).field("state", state_of(t)).field("blocks", t.blocks);
    json.field("reserved_bytes", t.reserved_bytes).field("mapped_bytes", t.mapped_bytes);
    json.field("suspended_bytes", t.suspended_bytes);
    (t.store ? json.field("backing_store", name_of(*t.store)) : json.nothing("backing_store"))
        .end();
  }
  json.end().field("omitted_tags", s.omitted_tags);
  json.field("omitted_mapped_bytes", s.omitted_mapped_bytes);
  json.field("omitted_suspended_bytes", s.omitted_suspended_bytes);
  job_json(json, s.job);
  return json.end().text();
}

void print(const control::process_status &s) {
  fmt::print("process {}: {} (device {}), {} of {} free\n", s.pid, printable(s.device), s.ordinal,
             format_bytes(s.memory_free), format_bytes(s.memory_total));
  std::size_t width = 3;
  for (const control::tag_status &t : s.tags) width = std::max(width, t.tag.size());
  width = std::min<std::size_t>(width, 40);
  fmt::print("  {:<{}}  blocks      mapped   suspended    reserved  state\n", "tag", width);
  for (const control::tag_status &t : s.tags) {
    fmt::print("  {:<{}}  {:>6}  {:>10}  {:>10}  {:>10}  {}{}\n",
               t.tag.empty() ? "-" : printable(t.tag), width, t.blocks,
               format_bytes(t.mapped_bytes), format_bytes(t.suspended_bytes),
               format_bytes(t.reserved_bytes), state_of(t),
               t.store ? fmt::format(", {}", name_of(*t.store)) : "");
  }
  if (s.tags.empty()) fmt::print("  no memory\n");
  if (s.omitted_tags != 0) {
    fmt::print("  and {} more tags: {} mapped, {} suspended\n", s.omitted_tags,
               format_bytes(s.omitted_mapped_bytes), format_bytes(s.omitted_suspended_bytes));
  }
  if (const std::string busy = job_text(s.job); !busy.empty()) fmt::print("busy: {}\n", busy);
}

}  // namespace

outcome<exit_status> run_task_status(const task_status_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto s, about(client_of(o.task).status(), o.task.socket));
  o.json ? fmt::print("{}", as_json(s)) : print(s);
  return exit_ok;
}

}  // namespace stillmap::tool
