// stillmap restore: the memory of an image in this process, and from here to another.
#include <fmt/format.h>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/image/image_options.h"
#include "tools/stillmap/image/restored_check.h"
#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

struct restore_command {
  std::string file, give;
  std::vector<std::string> tags;
  image_options image;
  driver_options where;
  double wait = 30;
  bool relocate = false, json = false;
};

outcome<snapshot::restored> restore(const restore_command &o, const device &d,
                                    const image::reader &from) {
  snapshot::restore_options how;
  how.tags = o.tags;
  how.relocate = o.relocate;
  if (!o.give.empty()) how.exportable = handle_type::posix_fd;
  std::optional<progress> bar;
  how.on_progress = [&](const snapshot::restore_progress &p) {
    if (!bar) bar.emplace("restore", p.of_bytes, o.json);
    bar->update(p.bytes, {});
    return true;
  };
  auto done = snapshot::restore(d, from, how);
  if (!done) return fail(image::in_file(std::move(done), o.file).error());
  return std::move(*done);
}

outcome<handoff::given_memory> hand_over(const restore_command &o, const device &d,
                                         const checkpoint::restored_memory &memory) {
  auto to = handoff::connection::connect(o.give, milliseconds_of(o.wait));
  if (!to) return fail(to.error());
  std::vector<std::string> tags;
  for (const auto &b : memory.layout().blocks) {
    if (std::find(tags.begin(), tags.end(), b.tag) == tags.end()) tags.push_back(b.tag);
  }
  auto given = handoff::give(d, *to, tags);
  if (!given) return fail(given.error());
  return std::move(*given);
}

void print(const restore_command &o, const checkpoint::memory_layout &l,
           const std::vector<virtual_range> &was, std::uint64_t compared,
           const handoff::given_memory *given) {
  if (o.json) {
    json_writer json;
    json.begin_object().field("bytes", std::uint64_t{l.bytes()}).field("compared_bytes", compared);
    blocks_json(json, l);
    json.begin_array("was");
    for (const virtual_range &r : was) {
      json.begin_object().field("begin", r.begin.value()).end();
    }
    json.end();
    if (given != nullptr) {
      json.field("given_to", static_cast<int>(given->to.pid));
    } else {
      json.nothing("given_to");
    }
    fmt::print("{}\n", json.end().text());
    return;
  }
  fmt::print("{}", blocks_table(l));
  for (std::size_t i = 0; i < was.size(); ++i) {
    fmt::print("  {} was {}\n", hexadecimal(l.blocks[i].range.begin.value()),
               hexadecimal(was[i].begin.value()));
  }
  fmt::print("stillmap: ok: {}: {} at {}, every byte compared{}\n", o.file, human(l.bytes()),
             o.relocate ? "other addresses" : "the addresses that it had",
             given != nullptr ? fmt::format("; now memory of process {}", given->to.pid)
                              : "; it can be restored here");
}

outcome<exit_status> run_restore(const restore_command &o) {
  const auto image = open_image(o.file, o.image);
  if (!image) return tl::unexpected(image.error());
  const auto drv = choose_driver(o.where.driver);
  if (!drv) return tl::unexpected(drv.error());
  const auto d = open_device(**drv, o.where.device);
  if (!d) return tl::unexpected(d.error());
  if (!keeps_content(**drv)) {
    return fail(exit_usage, "this hostcuda keeps no contents (unbacked): nothing can be restored");
  }
  const auto done = restore(o, *d, *image);
  if (!done) return tl::unexpected(done.error());
  const checkpoint::memory_layout &l = done->memory.layout();
  progress bar("compare", l.bytes(), o.json);
  const auto compared =
      compare_with_image(done->memory, *image, o.tags, [&](std::uint64_t n) { bar.update(n, {}); });
  bar.finish();
  if (!compared) return tl::unexpected(compared.error());
  if (o.give.empty()) {
    print(o, l, done->was, *compared, nullptr);
    return exit_ok;
  }
  const auto given = hand_over(o, *d, done->memory);
  if (!given) return tl::unexpected(given.error());
  print(o, l, done->was, *compared, &*given);
  return exit_ok;
}

}  // namespace

void add_restore(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "restore",
      "Restores an image into this process, compares every byte, and ends: a\ncheck that it can be "
      "restored here. With --give the memory then\nbecomes that of a process that waits for it "
      "(stillmap handoff take).");
  const auto o = std::make_shared<restore_command>();
  c->add_option("image", o->file, "the image")->required()->type_name("IMAGE");
  add_tags(*c, o->tags, "only this one; again for more of them");
  c->add_flag("--relocate", o->relocate,
              "at other addresses: for memory that holds no pointers into\nitself");
  c->add_option("--give", o->give, "hand the memory over to the process that listens there")
      ->type_name("SOCKET");
  add_wait_option(*c, o->wait, "how long to wait for that process (default: 30)");
  c->add_flag("--json", o->json, "the result for programs");
  add_image_options(*c, o->image);
  add_driver_options(*c, o->where);
  c->callback([o, &body] { body = [o] { return run_restore(*o); }; });
}

}  // namespace stillmap::tool
