// stillmap image prune: removes old images, and none that another one needs.
#include <fmt/format.h>

#include "stillmap/checkpoint/image/prune.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/image/image_commands.h"

namespace stillmap::tool {
namespace {

using image::pruned_image;

void add_list(json_writer &json, const char *key, const std::vector<pruned_image> &list) {
  json.begin_array(key);
  for (const pruned_image &i : list) {
    json.begin_object().field("name", i.name).field("file_bytes", i.file_bytes);
    json.field("time_ns", i.time).end();
  }
  json.end();
}

void print_list(const char *what, const std::vector<pruned_image> &list) {
  for (const pruned_image &i : list) {
    fmt::print("{:<8}  {:>10}  {:<23}  {}\n", what, format_bytes(i.file_bytes), utc_text(i.time),
               printable(i.name));
  }
}

}  // namespace

outcome<exit_status> run_prune(const prune_command_options &o) {
  image::prune_options options;
  options.keep = o.keep;
  options.dry_run = o.dry_run;
  STILLMAP_ASSIGN_OR_RETURN(const auto done,
                            about(image::prune_folder(o.folder, options), o.folder));
  std::uint64_t bytes = 0;
  for (const pruned_image &i : done.removed) bytes += i.file_bytes;
  if (o.json) {
    json_writer json;
    json.begin_object().field("folder", o.folder).field("dry_run", o.dry_run);
    add_list(json, "removed", done.removed);
    add_list(json, "kept", done.kept);
    add_list(json, "needed", done.needed);
    json.begin_array("unreadable");
    for (const image::unreadable_name &u : done.unreadable) {
      json.begin_object().field("name", u.name).field("error", u.why.message()).end();
    }
    fmt::print("{}", json.end().field("freed_bytes", bytes).end().text());
    return exit_ok;
  }
  print_list("kept", done.kept);
  print_list("needed", done.needed);
  print_list(o.dry_run ? "to go" : "removed", done.removed);
  for (const image::unreadable_name &u : done.unreadable) {
    fmt::print("left      {}: {}\n", printable(u.name), printable(u.why.message()));
  }
  const std::string needed =
      done.needed.empty()
          ? ""
          : fmt::format(", {} more because a kept one builds on it", done.needed.size());
  fmt::print("stillmap: ok: {} {}, {} {}; {} kept{}\n", done.removed.size(),
             o.dry_run ? "would be removed" : "removed", format_bytes(bytes),
             o.dry_run ? "would be freed" : "freed", done.kept.size(), needed);
  return exit_ok;
}

}  // namespace stillmap::tool
