// stillmap image flatten: writes an incremental image and its parents as one image.
#include <fmt/format.h>

#include "stillmap/checkpoint/image/writer.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/image/image_commands.h"

namespace stillmap::tool {

outcome<exit_status> run_flatten(const flatten_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto opened, open_image(o.from, o.image));
  STILLMAP_ASSIGN_OR_RETURN(const auto keys, open_options_of(o.image));
  image::write_options options;
  options.key = keys.key;
  options.replace = o.replace;
  options.force = o.force;
  options.compress = codec_of(o.compress);
  progress bar("flatten", opened.superblock().contents_bytes, o.json);
  options.on_progress = [&](const image::write_progress &p) {
    if (p.phase == image::write_phase::contents) bar.update(p.bytes, {});
    return true;
  };
  STILLMAP_ASSIGN_OR_RETURN(const auto w, about(image::flatten(opened, o.to, options), o.to));
  bar.finish();
  if (o.json) {
    json_writer json;
    json.begin_object().field("file", o.to).field("image", w.image.text());
    json.field("contents_bytes", w.contents_bytes).field("file_bytes", w.file_bytes);
    fmt::print("{}", json.field("from_images", opened.chain()).end().text());
  } else {
    fmt::print("stillmap: ok: {}: {} of contents in {}, from {}\n", o.to,
               format_bytes(w.contents_bytes), format_bytes(w.file_bytes),
               counted(opened.chain(), "image"));
  }
  return exit_ok;
}

}  // namespace stillmap::tool
