// stillmap task restore: the contents of an image in the memory of a running process.
#include <fmt/format.h>

#include <optional>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {

outcome<exit_status> run_task_restore(const task_restore_options &o) {
  control::restore_request r = o.what;
  STILLMAP_RETURN_IF_ERROR(check_tags(o.task, r.tags, r.all));
  r.path = absolute(r.path);
  r.key = absolute(r.key);
  std::optional<progress> bar;
  bool verifying = false;
  const auto on_progress = [&](const control::snapshot_progress &p) {
    if (p.total_bytes == 0) return;
    if (!bar || verifying != p.verifying) {
      bar.reset();
      bar.emplace(p.verifying ? "verify" : "restore", p.total_bytes, o.json);
      verifying = p.verifying;
    }
    bar->update(p.bytes, {});
  };
  STILLMAP_ASSIGN_OR_RETURN(const auto done,
                            about(client_of(o.task).restore(r, on_progress), o.task.socket));
  bar.reset();
  if (o.json) {
    json_writer json;
    json.begin_object().field("image", done.image.text()).field("pages", done.pages);
    json.field("bytes", done.bytes).end();
    fmt::print("{}", json.text());
  } else {
    fmt::print("stillmap: ok: {}: {} restored from {}\n", o.task.socket, format_bytes(done.bytes),
               r.path);
  }
  return exit_ok;
}

}  // namespace stillmap::tool
