// stillmap task snapshot: an image of the memory of a running process.
#include <fmt/format.h>

#include <optional>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/image/open_image.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

void print(const control::snapshot_request &r, const image::written &w, bool as_json) {
  if (as_json) {
    json_writer json;
    json.begin_object().field("image", w.image.text()).field("file_bytes", w.file_bytes);
    json.field("contents_bytes", w.contents_bytes).field("stored_bytes", w.stored_bytes);
    json.field("chunks", w.chunks).field("zero_chunks", w.zero_chunks);
    json.field("same_chunks", w.same_chunks).field("parent_chunks", w.parent_chunks);
    json.field("compressed_chunks", w.compressed_chunks).field("verified", r.verify);
    json.field("encrypted", !r.key.empty()).field("signed", !r.sign_with.empty()).end();
    fmt::print("{}", json.text());
    return;
  }
  fmt::print("stillmap: ok: {}: {} of contents in {}", r.path, format_bytes(w.contents_bytes),
             format_bytes(w.file_bytes));
  if (w.parent_chunks != 0) {
    fmt::print("; {} of {} chunks are in the parent", format_count(w.parent_chunks),
               format_count(w.chunks));
  }
  if (!r.key.empty()) fmt::print("; encrypted");
  if (!r.sign_with.empty()) fmt::print("; signed");
  fmt::print("{}\n", r.verify ? "; read back and verified" : "");
}

}  // namespace

outcome<exit_status> run_task_snapshot(const task_snapshot_options &o) {
  control::snapshot_request r = o.what;
  STILLMAP_RETURN_IF_ERROR(check_tags(o.task, r.tags, r.all));
  r.path = absolute(r.path);
  r.parent = absolute(r.parent);
  r.key = absolute(r.key);
  r.sign_with = absolute(r.sign_with);
  r.compress = codec_of(o.compress);
  std::optional<progress> bar;
  bool verifying = false;
  const auto on_progress = [&](const control::snapshot_progress &p) {
    if (!bar || verifying != p.verifying) {
      bar.reset();
      bar.emplace(p.verifying ? "verify" : "snapshot", p.total_bytes, o.json);
      verifying = p.verifying;
    }
    bar->update(p.bytes, {});
  };
  STILLMAP_ASSIGN_OR_RETURN(const auto w,
                            about(client_of(o.task).snapshot(r, on_progress), o.task.socket));
  bar.reset();
  print(r, w, o.json);
  return exit_ok;
}

}  // namespace stillmap::tool
