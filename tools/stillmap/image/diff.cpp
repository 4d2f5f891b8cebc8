// stillmap image diff: the address ranges at which two images differ.
#include <fmt/format.h>

#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/image/image_commands.h"
#include "tools/stillmap/image/image_diff.h"

namespace stillmap::tool {
namespace {

const char *difference_name(difference d) {
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
    json.begin_object().field("begin", r.range.begin.value()).field("bytes", r.range.bytes);
    json.field("tag", r.tag).field("difference", difference_name(r.what)).end();
  }
  return json.end().end().text();
}

}  // namespace

outcome<exit_status> run_diff(const diff_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto first, open_image(o.first, o.image));
  STILLMAP_ASSIGN_OR_RETURN(const auto second, open_image(o.second, o.image));
  STILLMAP_ASSIGN_OR_RETURN(const auto d, about(compare(first, second), o.second));
  if (o.json) {
    fmt::print("{}", as_json(d));
  } else {
    for (const differing_range &r : d.ranges) {
      fmt::print("{} {:>10}  {}  {}\n", hexadecimal(r.range.begin.value()),
                 format_bytes(r.range.bytes), r.tag.empty() ? "-" : printable(r.tag),
                 difference_name(r.what));
    }
    fmt::print("stillmap: {} the same, {} changed, {} only in the first, {} only in the second\n",
               format_bytes(d.same), format_bytes(d.changed), format_bytes(d.only_in_first),
               format_bytes(d.only_in_second));
  }
  return d.ranges.empty() ? exit_ok : exit_differs;
}

}  // namespace stillmap::tool
