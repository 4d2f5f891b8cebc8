// Draws memory over a run as SVG: the bytes that a program had allocated, and what one or several
// allocators held of the device for it. A replay takes the points. Uses no driver.
// docs/traces.md#memory-over-a-run
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/vmm/base/error.h"

namespace stillmap {

// An interval of a run.
struct timeline_point {
  std::uint64_t requests = 0;             // served by its end
  std::uint64_t live = 0, committed = 0;  // bytes; the most at any moment in it
};

struct timeline_curve {
  std::string title;  // the allocator: "stillmap"
  std::vector<timeline_point> points;
  bool oom = false;  // its end is where memory ran out
};

struct timeline_picture {
  std::string title, subtitle;
  std::size_t capacity = 0;  // bytes that an allocator may commit, drawn as a line; 0: none
  std::vector<timeline_curve> curves;
  std::string unit = "requests";  // what timeline_point::requests counts
  std::string live_title = "allocated by the program";
};

// Returns one SVG document without scripts, links or fonts, for light and dark pages: the live bytes
// of the longest curve as an area, and a line of committed bytes for each. <title> elements describe
// both.
// Errors: out_of_memory (host memory).
result<std::string> to_svg(const timeline_picture &p);

}  // namespace stillmap
