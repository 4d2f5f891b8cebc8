#include "bench/replay/timeline.h"

#include <fmt/format.h>

#include "bench/replay/internal/failure.h"
#include "bench/replay/internal/output_file.h"
#include "bench/replay/replay.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::replay {

result<timeline_picture> timeline_of(const device &d, const replay_plan &plan,
                                     const timeline_options &o, const std::string &of) {
  timeline_picture picture;
  picture.title = of;
  picture.subtitle = "memory over the run, each allocator replaying the same requests";
  picture.capacity = o.capacity.value_or(0);
  for (const target_kind *const kind : o.kinds) {
    replay_options options;
    options.kind = kind;
    options.capacity = o.capacity;
    options.timeline_points = o.points;
    auto ran = run(d, plan, options);
    if (!ran && ran.error().is(errc::not_supported)) continue;
    if (!ran) return tl::unexpected(std::move(ran).error());
    picture.curves.push_back({kind->name, std::move(ran->timeline), ran->oom});
  }
  return picture;
}

status write_timeline(const timeline_picture &p, const std::string &path) {
  if (!path.ends_with(".svg")) {
    return fail(errc::invalid_argument, fmt::format("'{}' does not end with .svg", path));
  }
  STILLMAP_ASSIGN_OR_RETURN(const std::string content, to_svg(p));
  return write_output(path, content);
}

}  // namespace stillmap::replay
