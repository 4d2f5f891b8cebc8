#include <algorithm>
#include <cstdio>

#include "bench/costs/fit.h"
#include "bench/costs/table.h"

namespace stillmap::costs {
namespace {

// hostcuda's cost table has only plain calls of driver functions by one thread.
bool counts(const row &r) {
  return r.times.n != 0 && r.threads == 1 && r.call.starts_with("cu") &&
         r.call.find(' ') == std::string::npos &&
         (r.against == against::size || r.against == against::nothing);
}

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c >= 0 && c < 0x20; }, ' ');
  return text;
}

}  // namespace

std::string costs_of(const table &t) {
  std::string out = "# What the calls of " + one_line(t.driver) + " cost on " + one_line(t.device) +
                    ": function fixed_ns ns_per_MiB\n";
  if (!t.hostcuda.empty()) out += "# hostcuda is no GPU: these say nothing about one\n";
  std::vector<std::string> done;
  for (const row &first : t.rows) {
    if (!counts(first) || std::find(done.begin(), done.end(), first.call) != done.end()) continue;
    done.push_back(first.call);
    std::vector<sized_time> times;
    for (const row &r : t.rows) {
      if (!counts(r) || r.call != first.call) continue;
      times.push_back({r.against == against::size ? r.x / (1 << 20) : 0, r.times.median_ns});
    }
    const price p = fit(times);
    char line[160];
    std::snprintf(line, sizeof line, "%s %.0f %.3f\n", first.call.c_str(), p.fixed_ns,
                  p.ns_per_mib);
    out += line;
  }
  return out;
}

}  // namespace stillmap::costs
