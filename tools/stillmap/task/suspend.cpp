// stillmap task suspend and resume.
#include <fmt/format.h>

#include <optional>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

exit_status print(const task_suspend_options &o, bool suspended,
                  const checkpoint::suspended_tag &done) {
  if (o.json) {
    json_writer json;
    json.begin_object();
    o.all ? json.nothing("tag") : json.field("tag", done.tag);
    json.field("bytes", done.bytes);
    json.field("places", done.places).field("released_bytes", done.released.bytes());
    fmt::print("{}", json.field("backing_store", name_of(done.store)).end().text());
    return exit_ok;
  }
  fmt::print(
      "stillmap: ok: {} {}: {} at {}{}\n", o.all ? "all tags" : printable(done.tag),
      suspended ? "suspended" : "resumed", format_bytes(done.bytes), counted(done.places, "place"),
      suspended && done.released.bytes() != 0
          ? fmt::format("; {} of device memory released", format_bytes(done.released.bytes()))
          : "");
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

}  // namespace

outcome<exit_status> run_task_suspend(const task_suspend_options &o) {
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
  control::suspend_request r;
  r.tag = o.tag;
  r.all = o.all;
  r.store = o.to == "file"      ? checkpoint::backing_store::file
            : o.to == "discard" ? checkpoint::backing_store::discard
                                : checkpoint::backing_store::pinned_host;
  r.directory = absolute(o.directory);
  STILLMAP_ASSIGN_OR_RETURN(const auto done, about(client_of(o.task).suspend(r), o.task.socket));
  return print(o, true, done);
}

outcome<exit_status> run_task_resume(const task_suspend_options &o) {
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
