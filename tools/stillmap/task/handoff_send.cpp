// stillmap task handoff send: a process hands its memory to another one.
#include <fmt/format.h>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {

outcome<exit_status> run_handoff_send(const handoff_send_options &o) {
  STILLMAP_RETURN_IF_ERROR(check_tags(o.task, o.what.tags, o.what.all));
  control::handoff_request r = o.what;
  r.to = absolute(r.to);
  r.timeout = milliseconds_of(o.timeout);
  STILLMAP_ASSIGN_OR_RETURN(const auto sent, about(client_of(o.task).handoff(r), o.task.socket));
  if (o.json) {
    json_writer json;
    json.begin_object().field("to", sent.to.pid).field("bytes", sent.bytes);
    json.field("pages", sent.pages).field("blocks", sent.blocks).field("copied_bytes", 0);
    fmt::print("{}", json.field("unmapped", sent.unmapped).end().text());
  } else {
    fmt::print("stillmap: ok: {} in {} ({}), now owned by process {}{}\n", format_bytes(sent.bytes),
               counted(sent.blocks, "block"), counted(sent.pages, "page"), sent.to.pid,
               sent.unmapped ? "" : "; the sender failed to unmap its addresses");
  }
  return exit_ok;
}

}  // namespace stillmap::tool
