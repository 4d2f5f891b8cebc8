// stillmap verify: reads all of an image, and checks every byte of it.
#include <fmt/format.h>

#include "tools/stillmap/command.h"
#include "tools/stillmap/images/image_options.h"
#include "tools/stillmap/json.h"
#include "tools/stillmap/progress.h"

namespace stillmap::tool {
namespace {

struct verify_command {
  std::string file;
  image_options image;
  unsigned threads = 0;
  bool alone = false, json = false;
};

outcome<exit_status> run_verify(const verify_command &o) {
  const auto opened = open_image(o.file, o.image);
  if (!opened) return tl::unexpected(opened.error());
  std::uint64_t stored = 0;
  for (std::optional<image::reader> at = *opened; at; at = at->parent()) {
    for (const image::chunk_record &c : at->chunks()) stored += c.stored;
    if (o.alone) break;
  }
  progress bar("verify", stored, o.json);
  image::verify_options how;
  how.threads = o.threads;
  how.parents = !o.alone;
  std::uint64_t chunks = 0, bytes = 0;
  how.on_progress = [&](const image::verify_progress &p) {
    chunks = p.chunks;
    bytes = p.bytes;
    bar.update(p.bytes, {});
    return true;
  };
  const auto whole = opened->verify(how);
  bar.finish();
  if (!whole) return fail(whole.error());
  if (o.json) {
    json_writer json;
    json.begin_object().field("whole", true).field("chunks", chunks).field("bytes", bytes);
    fmt::print("{}\n", json.field("images", std::uint64_t{opened->chain()}).end().text());
  } else {
    fmt::print(
        "stillmap: ok: {} is whole: {} stored chunks, {}, every byte as it was written{}\n", o.file,
        exact(chunks), human(bytes),
        opened->chain() > 1 && !o.alone ? fmt::format(", in {} images", opened->chain()) : "");
  }
  return exit_ok;
}

}  // namespace

void add_verify(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "verify", "Reads all of an image and of its parents, and checks every byte.");
  const auto o = std::make_shared<verify_command>();
  c->add_option("image", o->file, "the image")->required()->type_name("IMAGE");
  c->add_option("--threads", o->threads, "that read (default: as many as there are processors)")
      ->check(CLI::Range(1u, 256u))
      ->type_name("N");
  c->add_flag("--alone", o->alone, "this file only, without its parents");
  c->add_flag("--json", o->json, "the result for programs");
  add_image_options(*c, o->image);
  c->callback([o, &body] { body = [o] { return run_verify(*o); }; });
}

}  // namespace stillmap::tool
