// stillmap verify: reads all of an image, and checks every byte of it.
#include <fmt/format.h>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/json.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/image/image_options.h"

namespace stillmap::tool {
namespace {

struct verify_command {
  std::string file;
  image_options image;
  unsigned threads = 0;
  bool alone = false, json = false;
};

std::uint64_t stored_bytes(const image::reader &r, bool alone) {
  std::uint64_t stored = 0;
  for (std::optional<image::reader> at = r; at; at = at->parent()) {
    for (const image::chunk_record &c : at->chunks()) stored += c.stored;
    if (alone) break;
  }
  return stored;
}

outcome<exit_status> run_verify(const verify_command &o) {
  const auto opened = open_images(o.file, o.image);
  if (!opened) return tl::unexpected(opened.error());
  std::uint64_t stored = 0, images = 0;
  for (const image::reader &r : *opened) {
    stored += stored_bytes(r, o.alone);
    images += o.alone ? 1 : r.chain();
  }
  progress bar("verify", stored, o.json);
  image::verify_options how;
  how.threads = o.threads;
  how.parents = !o.alone;
  std::uint64_t chunks = 0, bytes = 0;  // of those before, then of all
  for (const image::reader &r : *opened) {
    image::verify_progress last;
    how.on_progress = [&](const image::verify_progress &p) {
      last = p;
      bar.update(bytes + p.bytes, {});
      return true;
    };
    const auto whole = r.verify(how);
    if (!whole) {
      bar.finish();
      return fail(whole.error());
    }
    chunks += last.chunks;
    bytes += last.bytes;
  }
  bar.finish();
  if (o.json) {
    json_writer json;
    json.begin_object().field("whole", true).field("chunks", chunks).field("bytes", bytes);
    fmt::print("{}\n", json.field("images", images).end().text());
  } else {
    fmt::print("stillmap: ok: {} is whole: {} stored chunks, {}, every byte as it was written{}\n",
               o.file, exact(chunks), human(bytes),
               images > 1 ? fmt::format(", in {} images", images) : "");
  }
  return exit_ok;
}

}  // namespace

void add_verify(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "verify", "Reads all of an image, or of a set, and of its parents, and checks\nevery byte.");
  const auto o = std::make_shared<verify_command>();
  c->add_option("image", o->file, "the image, or the folder of a set")
      ->required()
      ->type_name("IMAGE");
  c->add_option("--threads", o->threads, "that read (default: as many as there are processors)")
      ->check(CLI::Range(1u, 256u))
      ->type_name("N");
  c->add_flag("--alone", o->alone, "this file only, without its parents");
  c->add_flag("--json", o->json, "the result for programs");
  add_image_options(*c, o->image);
  c->callback([o, &body] { body = [o] { return run_verify(*o); }; });
}

}  // namespace stillmap::tool
