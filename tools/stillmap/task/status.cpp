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
  json.field("published_bytes", s.published_bytes);
  if (s.memory) {
    json.begin_object("allocator").field("live_bytes", s.memory->allocated);
    json.field("cached_bytes", s.memory->cached).field("evictable_bytes", s.memory->evictable);
    s.memory->limit == 0 ? json.nothing("limit_bytes") : json.field("limit_bytes", s.memory->limit);
    json.field("quota", s.memory->quota).end();
  } else {
    json.nothing("allocator");
  }
  job_json(json, s.job);
  return json.end().text();
}

std::string allocator_text(const control::memory_figures &m) {
  std::string out =
      fmt::format("{} live, {} cached", format_bytes(m.allocated), format_bytes(m.cached));
  if (m.evictable != 0) out += fmt::format(", {} evictable", format_bytes(m.evictable));
  if (m.limit != 0) out += ", limit " + format_bytes(m.limit);
  if (!m.quota.empty()) out += ", of the quota " + printable(m.quota);
  return out;
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
  if (s.published_bytes != 0) fmt::print("published: {}\n", format_bytes(s.published_bytes));
  if (s.memory) fmt::print("allocator: {}\n", allocator_text(*s.memory));
  if (const std::string busy = job_text(s.job); !busy.empty()) fmt::print("busy: {}\n", busy);
}

}  // namespace

outcome<exit_status> run_task_status(const task_status_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto s, about(client_of(o.task).status(), o.task.socket));
  o.json ? fmt::print("{}", as_json(s)) : print(s);
  return exit_ok;
}

}  // namespace stillmap::tool
