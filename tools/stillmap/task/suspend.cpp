// stillmap task suspend and resume.
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/address.h"
#include "tools/stillmap/task/each_task.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

control::suspend_request request_of(const task_suspend_options &o) {
  control::suspend_request r;
  r.tag = o.tag;
  r.all = o.all;
  r.store = o.to == "file"      ? checkpoint::backing_store::file
            : o.to == "discard" ? checkpoint::backing_store::discard
                                : checkpoint::backing_store::pinned_host;
  r.directory = absolute(o.directory);
  return r;
}

void fields_of(json_writer &json, const task_suspend_options &o,
               const checkpoint::suspended_tag &done) {
  o.all ? json.nothing("tag") : json.field("tag", done.tag);
  json.field("bytes", done.bytes);
  json.field("places", done.places).field("released_bytes", done.released.bytes());
  json.field("backing_store", name_of(done.store));
}

std::string text_of(const task_suspend_options &o, bool suspended,
                    const checkpoint::suspended_tag &done) {
  return fmt::format(
      "{} {}: {} at {}{}", o.all ? "all tags" : printable(done.tag),
      suspended ? "suspended" : "resumed", format_bytes(done.bytes), counted(done.places, "place"),
      suspended && done.released.bytes() != 0
          ? fmt::format("; {} of device memory released", format_bytes(done.released.bytes()))
          : "");
}

exit_status print(const task_suspend_options &o, bool suspended,
                  const checkpoint::suspended_tag &done) {
  if (!o.json) {
    fmt::print("stillmap: ok: {}\n", text_of(o, suspended, done));
    return exit_ok;
  }
  json_writer json;
  json.begin_object();
  fields_of(json, o, done);
  fmt::print("{}", json.end().text());
  return exit_ok;
}

// Of each task, in their order.
exit_status print(const task_suspend_options &o, bool suspended,
                  const std::vector<answered_task> &all) {
  if (!o.json) {
    for (const answered_task &t : all) {
      fmt::print("stillmap: ok: {}: {}\n", printable(t.socket),
                 t.done ? text_of(o, suspended, *t.done) : "nothing to do");
    }
    return exit_ok;
  }
  json_writer json;
  json.begin_object().begin_array("tasks");
  for (const answered_task &t : all) {
    json.begin_object().field("socket", t.socket);
    if (t.done) fields_of(json, o, *t.done);
    json.end();
  }
  fmt::print("{}", json.end().end().text());
  return exit_ok;
}

// The tag as the process has it, or the sum of all with a name; nothing where its status does not list it, or leaves
// some out: then the process itself answers.
outcome<std::optional<control::tag_status>> status_of(const task_suspend_options &o) {
  if (o.all == !o.tag.empty()) return fail(exit_usage, "either TAG or --all is needed");
  if (!o.all) STILLMAP_RETURN_IF_ERROR(check_tags(o.task, {o.tag}));
  STILLMAP_ASSIGN_OR_RETURN(const auto s, about(client_of(o.task).status(), o.task.socket));
  control::tag_status sum;
  for (const control::tag_status &t : s.tags) {
    if (!o.all && t.tag == o.tag) return t;
    if (!o.all || t.tag.empty()) continue;
    sum.mapped_bytes += t.mapped_bytes;
    sum.suspended_bytes += t.suspended_bytes;
  }
  if (!o.all || s.omitted_tags != 0) return std::nullopt;
  return sum;
}

outcome<exit_status> run_each(const task_suspend_options &o, bool suspends) {
  if (o.all == !o.tag.empty()) return fail(exit_usage, "either TAG or --all is needed");
  if (o.task.timeout != 0) return fail(exit_usage, "--each has --within, not --timeout");
  if (o.to == "discard") {
    return fail(exit_usage,
                "--each: where one task fails the others get their memory back, and what is "
                "discarded does not come back");
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto sockets, resolve_tasks(o.task.socket));
  const auto timeout = milliseconds_of(o.within);
  STILLMAP_ASSIGN_OR_RETURN(const auto done,
                            ask_each(sockets, {suspends, request_of(o)}, timeout, timeout));
  return print(o, suspends, done);
}

}  // namespace

outcome<exit_status> run_task_suspend(const task_suspend_options &o) {
  if (o.each) return run_each(o, true);
  STILLMAP_ASSIGN_OR_RETURN(const auto now, status_of(o));
  if (o.all && now && now->mapped_bytes == 0) {
    return fail(exit_not_found,
                fmt::format("{}: {}", printable(o.task.socket),
                            now->suspended_bytes == 0
                                ? "no memory has a tag"
                                : "all tags are suspended already; `stillmap task resume --all` "
                                  "brings them back"));
  }
  if (now && now->suspended_bytes != 0 && now->mapped_bytes == 0) {
    return fail(exit_busy,
                fmt::format("{}: the tag {} is suspended already{}; `stillmap task "
                            "resume` brings it back",
                            printable(o.task.socket), printable(o.tag),
                            now->store ? fmt::format(" ({})", name_of(*now->store)) : ""));
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto done,
                            about(client_of(o.task).suspend(request_of(o)), o.task.socket));
  return print(o, true, done);
}

outcome<exit_status> run_task_resume(const task_suspend_options &o) {
  if (o.each) return run_each(o, false);
  STILLMAP_ASSIGN_OR_RETURN(const auto now, status_of(o));
  if (o.all && now && now->suspended_bytes == 0) {
    return fail(exit_not_found, fmt::format("{}: no tag is suspended", printable(o.task.socket)));
  }
  if (now && now->suspended_bytes == 0 && now->mapped_bytes != 0) {
    return fail(exit_failed, fmt::format("{}: the tag {} is not suspended: its memory is there",
                                         printable(o.task.socket), printable(o.tag)));
  }
  const control::client client = client_of(o.task);
  STILLMAP_ASSIGN_OR_RETURN(
      const auto done, about(o.all ? client.resume_all() : client.resume(o.tag), o.task.socket));
  return print(o, false, done);
}

}  // namespace stillmap::tool
