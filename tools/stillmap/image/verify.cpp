// stillmap image verify: reads all of an image and checks every byte of it.
#include <fmt/format.h>

#include <optional>

#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/image/image_commands.h"

namespace stillmap::tool {
namespace {

std::uint64_t stored_bytes(const image::reader &r, bool skip_parents) {
  std::uint64_t stored = 0;
  for (std::optional<image::reader> at = r; at; at = at->parent()) {
    for (const image::chunk_record &c : at->chunks()) stored += c.stored;
    if (skip_parents) break;
  }
  return stored;
}

// What is damaged differs from what was written, whichever part of it shows that.
failure of_verification(failure f) {
  if (f.cause && f.cause->is(errc::corrupt)) f.status = exit_differs;
  return f;
}

}  // namespace

outcome<exit_status> run_verify(const verify_options &o) {
  const auto opened = open_images(o.file, o.image);
  if (!opened) return tl::unexpected(of_verification(opened.error()));
  std::uint64_t stored = 0, images = 0;
  for (const image::reader &r : *opened) {
    stored += stored_bytes(r, o.skip_parents);
    images += o.skip_parents ? 1 : r.chain();
  }
  progress bar("verify", stored, o.json);
  image::verify_options options;
  options.threads = o.threads;
  options.parents = !o.skip_parents;
  std::uint64_t chunks = 0, bytes = 0;  // of the images that are done
  for (const image::reader &r : *opened) {
    image::verify_progress last;
    options.on_progress = [&](const image::verify_progress &p) {
      last = p;
      bar.update(bytes + p.bytes, {});
      return true;
    };
    if (const auto whole = r.verify(options); !whole) {
      return tl::unexpected(of_verification(failure(whole.error().about(r.path()))));
    }
    chunks += last.chunks;
    bytes += last.bytes;
  }
  bar.finish();
  if (o.json) {
    json_writer json;
    json.begin_object().field("intact", true).field("chunks", chunks).field("bytes", bytes);
    fmt::print("{}", json.field("images", images).end().text());
  } else {
    fmt::print("stillmap: ok: {} is intact: {} stored chunks, {}, every byte checked{}\n", o.file,
               format_count(chunks), format_bytes(bytes),
               images > 1 ? fmt::format(", in {} images", images) : "");
  }
  return exit_ok;
}

}  // namespace stillmap::tool
