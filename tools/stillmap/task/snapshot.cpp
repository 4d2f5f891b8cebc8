// stillmap snapshot: an image of what a running process holds.
#include <fmt/format.h>

#include <optional>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

struct snapshot_command {
  task_options task;
  control::snapshot_request what;
  std::string compress = "none";
  bool all = false, trust = false, json = false;
};

void print(const snapshot_command &o, const image::written &w) {
  if (o.json) {
    json_writer json;
    json.begin_object().field("image", w.image.text()).field("file_bytes", w.file_bytes);
    json.field("contents_bytes", w.contents_bytes).field("stored_bytes", w.stored_bytes);
    json.field("chunks", w.chunks).field("zero_chunks", w.zero_chunks);
    json.field("same_chunks", w.same_chunks).field("parent_chunks", w.parent_chunks);
    json.field("compressed_chunks", w.compressed_chunks);
    fmt::print("{}\n", json.field("verified", o.what.verify).end().text());
    return;
  }
  fmt::print("stillmap: ok: {}: {} of contents in {}", o.what.path, human(w.contents_bytes),
             human(w.file_bytes));
  if (w.parent_chunks != 0) {
    fmt::print("; {} of {} chunks are the parent's", exact(w.parent_chunks), exact(w.chunks));
  }
  fmt::print("{}\n", o.what.verify ? "; read back and verified" : "");
}

outcome<exit_status> run_snapshot(const snapshot_command &given) {
  snapshot_command o = given;
  auto tags = tags_of(client_of(o.task), o.what.tags, o.all);
  if (!tags) return tl::unexpected(tags.error());
  o.what.tags = std::move(*tags);
  o.what.path = absolute(o.what.path);
  o.what.parent = absolute(o.what.parent);
  o.what.verify = !o.trust;
  o.what.compress = o.compress == "lz4"    ? image::codec::lz4
                    : o.compress == "zstd" ? image::codec::zstd
                                           : image::codec::none;
  std::optional<progress> bar;
  bool verifying = false;
  const auto w = client_of(o.task).snapshot(o.what, [&](const control::snapshot_progress &p) {
    if (!bar || verifying != p.verifying) {
      bar.reset();
      bar.emplace(p.verifying ? "verify" : "snapshot", p.of_bytes, o.json);
      verifying = p.verifying;
    }
    bar->update(p.bytes, {});
    return true;
  });
  bar.reset();
  if (!w) return fail(w.error());
  print(o, *w);
  return exit_ok;
}

}  // namespace

void add_snapshot(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "snapshot",
      "Has a process save the memory of some tags as an image: whole, or not\nat all. It brings "
      "its work to a stop meanwhile and then goes on.\nInterrupting this command gives it up.");
  const auto o = std::make_shared<snapshot_command>();
  add_task_options(*c, o->task);
  add_tags(*c, o->what.tags, "whose memory; again for more of them");
  c->add_flag("--all", o->all, "all memory that has a tag");
  c->add_option("-o,--output", o->what.path, "the image to write")->required()->type_name("IMAGE");
  c->add_option("--parent", o->what.parent, "store only what differs from this image")
      ->type_name("IMAGE");
  c->add_option("--compress", o->compress, "each chunk for which it is worth it")
      ->check(CLI::IsMember({"none", "lz4", "zstd"}))
      ->type_name("none|lz4|zstd");
  c->add_flag("--replace", o->what.replace, "IMAGE, if it is there");
  c->add_flag("--no-verify", o->trust, "do not read it back before it takes its name");
  c->add_flag("--json", o->json, "the result for programs");
  c->callback([o, &body] {
    if (o->all != o->what.tags.empty()) {
      throw CLI::ValidationError("--tag", "either some tags, or --all");
    }
    body = [o] { return run_snapshot(*o); };
  });
}

}  // namespace stillmap::tool
