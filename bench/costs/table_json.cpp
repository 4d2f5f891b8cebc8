#include <cmath>
#include <cstdio>

#include "bench/costs/table.h"
#include "stillmap/allocators/report/internal/text_out.h"

namespace stillmap::costs {
namespace {

using text::json;

std::string number(double n) {
  if (!std::isfinite(n)) return "null";  // JSON has no other word for it
  char text[40];
  std::snprintf(text, sizeof text, n == std::floor(n) ? "%.0f" : "%.3f", n);
  return text;
}

std::string json_of(const row &r) {
  std::string out = "{\"call\":" + json(r.call) + ",\"against\":" + json(r.against) +
                    ",\"x\":" + number(r.x) + ",\"threads\":" + std::to_string(r.threads) +
                    ",\"n\":" + std::to_string(r.times.n);
  const bool any = r.times.n != 0;
  out += ",\"median_ns\":" + (any ? number(r.times.median_ns) : "null");
  out += ",\"p99_ns\":" + (any ? number(r.times.p99_ns) : "null");
  if (!r.error.empty()) out += ",\"error\":" + json(r.error);
  return out + "}";
}

std::string json_of(const fact &f) {
  const auto *const n = std::get_if<double>(&f.value);
  return "{\"name\":" + json(f.name) +
         ",\"value\":" + (n != nullptr ? number(*n) : json(std::get<std::string>(f.value))) +
         ",\"text\":" + json(f.text) + "}";
}

// One a line, so that two files can be compared.
template <class T>
std::string lines_of(const std::vector<T> &all) {
  std::string out = "[";
  for (const T &one : all) out += (&one == all.data() ? "\n " : ",\n ") + json_of(one);
  return out + "]";
}

}  // namespace

std::string json_of(const table &t) {
  std::string out = "{\"format\":\"stillmap-costs 1\",\n\"device\":" + json(t.device) +
                    ",\"driver\":" + json(t.driver) + ",\"commit\":" + json(t.commit);
  if (!t.hostcuda.empty()) out += ",\"hostcuda\":" + json(t.hostcuda);
  out += ",\n\"seconds\":" + number(t.seconds) + ",\"quick\":" + (t.quick ? "true" : "false");
  return out + ",\n\"rows\":" + lines_of(t.rows) + ",\n\"facts\":" + lines_of(t.facts) + "}\n";
}

}  // namespace stillmap::costs
