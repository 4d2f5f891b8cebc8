// The report of stillmap demo growth: as sentences, as a table, as JSON.
#pragma once

#include <string>

#include "tools/stillmap/demo/growth_run.h"
#include "tools/stillmap/map/picture.h"

namespace stillmap::tool {

enum class comparison { none, done, refused };

struct demo_report {
  std::string driver, driver_path;
  int driver_version = 0;
  std::string source;
  std::uint64_t source_bytes = 0, at_least = 0;
  bool was_in_place = true;
  growth_run in_place;  // the run that is judged
  tool::verdict verdict;
  tool::comparison comparison = tool::comparison::none;
  std::string why_no_comparison;  // where refused
  growth_run by_copying;
  picture map;
  std::string svg;  // empty: none written
};

// Bytes, growths, address, copies, content. No newline at the end.
std::string sentences(const demo_report &r);
// The job in place and the job by copying, side by side.
std::string table(const demo_report &r);
std::string as_json(const demo_report &r);

}  // namespace stillmap::tool
