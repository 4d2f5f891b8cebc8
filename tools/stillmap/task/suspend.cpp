// stillmap task suspend and resume.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/address.h"
#include "tools/stillmap/task/each_task.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

tag_request request_of(const task_suspend_options &o, bool suspends) {
  tag_request r;
  r.suspends = suspends;
  r.store_is_given = !o.to.empty();
  r.memory.tag = o.tag;
  r.memory.all = o.all;
  r.memory.store = o.to == "file"      ? checkpoint::backing_store::file
                   : o.to == "discard" ? checkpoint::backing_store::discard
                                       : checkpoint::backing_store::pinned_host;
  r.memory.directory = absolute(o.directory);
  return r;
}

void fields_of(json_writer &json, const task_suspend_options &o, const answered_task &t) {
  const checkpoint::suspended_tag done = t.done.value_or(checkpoint::suspended_tag());
  o.all ? json.nothing("tag") : json.field("tag", o.tag);
  json.field("bytes", done.bytes);
  json.field("mappings", done.places).field("released_bytes", done.released.bytes());
  t.done ? json.field("backing_store", name_of(done.store)) : json.nothing("backing_store");
}

std::string text_of(const task_suspend_options &o, bool suspended, const answered_task &t) {
  const std::string what = o.all ? "all tags" : printable(o.tag);
  if (!t.done) return fmt::format("{}: {}; nothing to do", what, t.as_it_is);
  return fmt::format(
      "{} {}: {} in {}{}", what, suspended ? "suspended" : "resumed", format_bytes(t.done->bytes),
      counted(t.done->places, "mapping"),
      suspended && t.done->released.bytes() != 0
          ? fmt::format("; {} of device memory released", format_bytes(t.done->released.bytes()))
          : "");
}

exit_status print(const task_suspend_options &o, bool suspended, const answered_task &t) {
  if (!o.json) {
    fmt::print("stillmap: ok: {}\n", text_of(o, suspended, t));
    return exit_ok;
  }
  json_writer json;
  json.begin_object();
  fields_of(json, o, t);
  fmt::print("{}", json.end().text());
  return exit_ok;
}

// Of each task, in their order.
exit_status print(const task_suspend_options &o, bool suspended,
                  const std::vector<answered_task> &all) {
  if (!o.json) {
    for (const answered_task &t : all) {
      fmt::print("stillmap: ok: {}: {}\n", printable(t.socket), text_of(o, suspended, t));
    }
    return exit_ok;
  }
  json_writer json;
  json.begin_object().begin_array("tasks");
  for (const answered_task &t : all) {
    json.begin_object().field("socket", t.socket);
    fields_of(json, o, t);
    json.end();
  }
  fmt::print("{}", json.end().end().text());
  return exit_ok;
}

outcome<exit_status> run_each(const task_suspend_options &o, bool suspends) {
  if (o.task.timeout != 0) return fail(exit_usage, "--each has --within, not --timeout");
  if (o.to == "discard") {
    return fail(exit_usage,
                "--each: where one task fails the others get their memory back, and what is "
                "discarded does not come back");
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto sockets, resolve_tasks(o.task.socket));
  const auto timeout = milliseconds_of(o.within);
  STILLMAP_ASSIGN_OR_RETURN(const auto done,
                            ask_each(sockets, request_of(o, suspends), timeout, timeout));
  if (!o.all && std::none_of(done.begin(), done.end(), [](auto &t) { return t.knows_tag; })) {
    return fail(exit_not_found, fmt::format("{}: no memory of {} has the tag '{}'", o.task.socket,
                                            counted(done.size(), "task"), o.tag));
  }
  return print(o, suspends, done);
}

// What is as it should be already is no failure, of one task as of several.
outcome<exit_status> suspend_or_resume(const task_suspend_options &o, bool suspends) {
  if (o.all == !o.tag.empty()) return fail(exit_usage, "either TAG or --all is needed");
  if (o.each) return run_each(o, suspends);
  if (!o.all) STILLMAP_RETURN_IF_ERROR(check_tags(o.task, {o.tag}));
  answered_task t;
  t.socket = o.task.socket;
  STILLMAP_RETURN_IF_ERROR(
      about(ask_task(client_of(o.task), request_of(o, suspends), t), o.task.socket));
  return print(o, suspends, t);
}

}  // namespace

outcome<exit_status> run_task_suspend(const task_suspend_options &o) {
  return suspend_or_resume(o, true);
}
outcome<exit_status> run_task_resume(const task_suspend_options &o) {
  return suspend_or_resume(o, false);
}

}  // namespace stillmap::tool
