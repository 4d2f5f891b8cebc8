// stillmap image restore: restores an image into this process, and can send it on to another.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/image/image_commands.h"
#include "tools/stillmap/image/restored_check.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

outcome<void> check_tags(const restore_options &o, const image::reader &from) {
  const std::vector<std::string> &known = from.manifest().tags;
  for (const std::string &tag : o.tags) {
    if (std::find(known.begin(), known.end(), tag) != known.end()) continue;
    return fail(exit_not_found,
                printable(fmt::format("{}: no memory has the tag '{}'; there are {}", o.file, tag,
                                      join(known, ", "))));
  }
  return {};
}

outcome<snapshot::restored> restore(const restore_options &o, const device &d,
                                    const image::reader &from) {
  snapshot::restore_options options;
  options.tags = o.tags;
  options.relocate = o.relocate;
  if (!o.send_to.empty()) options.exportable = handle_type::posix_fd;
  std::optional<progress> bar;
  options.on_progress = [&](const snapshot::restore_progress &p) {
    if (!bar) bar.emplace("restore", p.total_bytes, o.json);
    bar->update(p.bytes, {});
  };
  return about(snapshot::restore(d, from, options), o.file);
}

outcome<handoff::sent_memory> send(const restore_options &o, const device &d,
                                   const checkpoint::restored_memory &memory) {
  STILLMAP_ASSIGN_OR_RETURN(
      auto to,
      about(handoff::connection::connect(o.send_to, milliseconds_of(o.timeout)), o.send_to));
  std::vector<std::string> tags;
  for (const auto &b : memory.layout().blocks) {
    if (std::find(tags.begin(), tags.end(), b.tag) == tags.end()) tags.push_back(b.tag);
  }
  return about(handoff::send(d, to, tags), o.send_to);
}

void print(const restore_options &o, const snapshot::restored &done, std::uint64_t compared,
           const handoff::sent_memory *sent) {
  const checkpoint::memory_layout &l = done.memory.layout();
  const auto &before = done.original_ranges;
  if (o.json) {
    json_writer json;
    json.begin_object().field("bytes", l.bytes()).field("compared_bytes", compared);
    blocks_json(json, l);
    json.begin_array("original_blocks");
    for (const virtual_range &r : before) {
      json.begin_object().field("begin", r.begin.value()).end();
    }
    json.end();
    sent == nullptr ? json.nothing("sent_to") : json.field("sent_to", sent->to.pid);
    fmt::print("{}", json.end().text());
    return;
  }
  fmt::print("{}", blocks_table(l));
  for (std::size_t i = 0; i < before.size(); ++i) {
    fmt::print("  {} was {}\n", hexadecimal(l.blocks[i].range.begin.value()),
               hexadecimal(before[i].begin.value()));
  }
  fmt::print("stillmap: ok: {}: {} at {} addresses, every byte compared; {}\n", o.file,
             format_bytes(l.bytes()), o.relocate ? "other" : "the original",
             sent != nullptr ? fmt::format("now owned by process {}", sent->to.pid)
                             : "it can be restored here");
}

}  // namespace

outcome<exit_status> run_restore(const restore_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto image, open_image(o.file, o.image));
  STILLMAP_RETURN_IF_ERROR(check_tags(o, image));
  STILLMAP_ASSIGN_OR_RETURN(const auto d, open_device(o.driver));
  if (!keeps_content(d.driver())) {
    return fail(exit_usage, "this hostcuda is unbacked: no contents can be restored");
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto done, restore(o, d, image));
  progress bar("compare", done.memory.layout().bytes(), o.json);
  STILLMAP_ASSIGN_OR_RETURN(
      const auto compared,
      compare_with_image(done.memory, image, o.tags, [&](std::uint64_t n) { bar.update(n, {}); }));
  bar.finish();
  if (o.send_to.empty()) {
    print(o, done, compared, nullptr);
    return exit_ok;
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto sent, send(o, d, done.memory));
  print(o, done, compared, &sent);
  return exit_ok;
}

}  // namespace stillmap::tool
