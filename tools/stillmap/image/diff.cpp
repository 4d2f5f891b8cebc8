// stillmap diff: which pages two images have different contents at.
#include <fmt/format.h>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/json.h"
#include "tools/stillmap/image/image_diff.h"
#include "tools/stillmap/image/image_options.h"

namespace stillmap::tool {
namespace {

struct diff_command {
  std::string first, second;
  image_options image;
  bool json = false;
};

const char *name_of(difference d) {
  return d == difference::contents        ? "changed"
         : d == difference::only_in_first ? "only in the first"
                                          : "only in the second";
}

std::string as_json(const image_difference &d) {
  json_writer json;
  json.begin_object().field("same_bytes", d.same).field("changed_bytes", d.changed);
  json.field("only_in_first_bytes", d.only_in_first);
  json.field("only_in_second_bytes", d.only_in_second).begin_array("ranges");
  for (const differing_range &r : d.ranges) {
    json.begin_object().field("begin", r.range.begin.value());
    json.field("bytes", std::uint64_t{r.range.bytes}).field("tag", r.tag);
    json.field("what", name_of(r.what)).end();
  }
  return json.end().end().text();
}

outcome<exit_status> run_diff(const diff_command &o) {
  const auto first = open_image(o.first, o.image);
  if (!first) return tl::unexpected(first.error());
  const auto second = open_image(o.second, o.image);
  if (!second) return tl::unexpected(second.error());
  const auto d = compare(*first, *second);
  if (!d) return fail(d.error());
  if (o.json) {
    fmt::print("{}\n", as_json(*d));
  } else {
    for (const differing_range &r : d->ranges) {
      fmt::print("{} {:>10}  {}  {}\n", hexadecimal(r.range.begin.value()), human(r.range.bytes),
                 r.tag.empty() ? "-" : r.tag, name_of(r.what));
    }
    fmt::print("stillmap: {} the same, {} changed, {} only in the first, {} only in the second\n",
               human(d->same), human(d->changed), human(d->only_in_first),
               human(d->only_in_second));
  }
  return d->ranges.empty() ? exit_ok : exit_failed;
}

}  // namespace

void add_diff(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "diff",
      "Where the memory of two images differs, by address. Exit status 0:\nnowhere; 1: somewhere.");
  const auto o = std::make_shared<diff_command>();
  c->add_option("first", o->first, "an image")->required()->type_name("FIRST");
  c->add_option("second", o->second, "another one")->required()->type_name("SECOND");
  c->add_flag("--json", o->json, "all of it for programs");
  add_image_options(*c, o->image);
  c->callback([o, &body] { body = [o] { return run_diff(*o); }; });
}

}  // namespace stillmap::tool
