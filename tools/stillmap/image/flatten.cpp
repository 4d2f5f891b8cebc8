// stillmap flatten: an incremental image and its parents as one that needs no parent.
#include <fmt/format.h>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/image/image_options.h"

namespace stillmap::tool {
namespace {

struct flatten_command {
  std::string from, to, compress = "none";
  image_options image;
  bool replace = false;
};

outcome<exit_status> run_flatten(const flatten_command &o) {
  const auto opened = open_image(o.from, o.image);
  if (!opened) return tl::unexpected(opened.error());
  image::write_options how;
  how.replace = o.replace;
  how.compress = o.compress == "lz4"    ? image::codec::lz4
                 : o.compress == "zstd" ? image::codec::zstd
                                        : image::codec::none;
  if (const auto keys = open_options_of(o.image); keys) how.key = keys->key;
  progress writing("flatten", opened->head().contents_bytes, false);
  how.on_progress = [&](const image::write_progress &p) {
    if (p.phase == image::write_phase::contents) writing.update(p.bytes, {});
    return true;
  };
  const auto w = image::flatten(*opened, o.to, how);
  writing.finish();
  if (!w) return fail(w.error());
  fmt::print("stillmap: ok: {}: {} of contents in {}, from {} image{}\n", o.to,
             human(w->contents_bytes), human(w->file_bytes), opened->chain(),
             opened->chain() == 1 ? "" : "s");
  return exit_ok;
}

}  // namespace

void add_flatten(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "flatten",
      "Writes an incremental image and its parents as one image that needs\nnone. With --key the "
      "new one is encrypted with the same.");
  const auto o = std::make_shared<flatten_command>();
  c->add_option("image", o->from, "the image")->required()->type_name("IMAGE");
  c->add_option("new", o->to, "the one to write")->required()->type_name("NEW");
  c->add_option("--compress", o->compress, "each chunk for which it is worth it")
      ->check(CLI::IsMember({"none", "lz4", "zstd"}))
      ->type_name("none|lz4|zstd");
  c->add_flag("--replace", o->replace, "NEW, if it is there");
  add_image_options(*c, o->image);
  c->callback([o, &body] { body = [o] { return run_flatten(*o); }; });
}

}  // namespace stillmap::tool
