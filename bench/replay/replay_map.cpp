#include "bench/replay/replay_map.h"

#include <fmt/format.h>

#include <filesystem>

#include "bench/replay/internal/failure.h"
#include "bench/replay/internal/output_file.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::replay {

std::size_t peak_of_last_iteration(const replay_plan &plan) {
  std::vector<std::uint64_t> of(plan.slots);
  std::uint64_t live = 0, most = 0;  // of the iteration
  std::size_t found = plan.ops.size();
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const planned_op &op = plan.ops[i];
    if (op.verb == trace_verb::iteration) most = 0;
    if (op.verb == trace_verb::free) live -= of[op.slot];
    if (op.verb != trace_verb::allocate) continue;
    live += of[op.slot] = op.bytes;
    if (live <= most) continue;
    most = live;
    found = i;
  }
  return found;
}

result<map_format> map_format_of(const std::string &path) {
  const std::string ending = std::filesystem::path(path).extension().string();
  if (ending == ".svg") return map_format::svg;
  if (ending == ".html") return map_format::html;
  if (ending == ".json") return map_format::json;
  if (ending == ".pickle") return map_format::pickle;
  return fail(errc::invalid_argument,
              fmt::format("'{}' ends in none of .svg, .html, .json and .pickle", path));
}

heap_picture picture_of(std::span<const named_moment> moments, const std::string &of) {
  heap_picture out;
  out.title =
      moments.size() == 1 ? "Memory of " + moments.front().allocator : "Memory, side by side";
  out.subtitle = of;
  for (const named_moment &m : moments) {
    heap_column &c = out.columns.emplace_back();
    c.title = m.allocator;
    if (m.moment.oom) {
      c.note =
          fmt::format("OUT OF MEMORY: {} more could not be had", format_bytes(m.moment.wanted));
    } else {
      c.note = m.beside_a_failure ? "served the same request" : "at the peak of the last iteration";
    }
    c.map = m.moment.heap.map;
    c.capacity = m.capacity;
    c.wanted = m.moment.oom ? m.moment.wanted : 0;
  }
  return out;
}

status write_map(std::span<const named_moment> moments, const std::string &of,
                 const std::string &path) {
  STILLMAP_ASSIGN_OR_RETURN(const map_format format, map_format_of(path));
  const bool drawn = format == map_format::svg || format == map_format::html;
  if (!drawn && moments.size() != 1) {
    return fail(errc::invalid_argument, "only a picture shows several allocators");
  }
  STILLMAP_ASSIGN_OR_RETURN(const std::string content,
                            format == map_format::svg    ? to_svg(picture_of(moments, of))
                            : format == map_format::html ? to_html(picture_of(moments, of))
                            : format == map_format::json
                                ? to_json(moments.front().moment.heap)
                                : to_torch_pickle(moments.front().moment.heap));
  return write_output(path, content);
}

}  // namespace stillmap::replay
