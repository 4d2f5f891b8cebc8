#include <cmath>
#include <cstdio>

#include "bench/costs/table.h"

namespace stillmap::costs {
namespace {

std::string quoted(const std::string &text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string number(double n) {
  if (!std::isfinite(n)) return "null";  // JSON has no other word for it
  char text[40];
  std::snprintf(text, sizeof text, n == std::floor(n) ? "%.0f" : "%.3f", n);
  return text;
}

std::string json_of(const row &r) {
  std::string out = "{\"call\":" + quoted(r.call) + ",\"against\":" + quoted(r.against) +
                    ",\"x\":" + number(r.x) + ",\"threads\":" + std::to_string(r.threads) +
                    ",\"n\":" + std::to_string(r.times.n);
  const bool any = r.times.n != 0;
  out += ",\"median_ns\":" + (any ? number(r.times.median_ns) : "null");
  out += ",\"p99_ns\":" + (any ? number(r.times.p99_ns) : "null");
  if (!r.error.empty()) out += ",\"error\":" + quoted(r.error);
  return out + "}";
}

std::string json_of(const fact &f) {
  const auto *const n = std::get_if<double>(&f.value);
  return "{\"name\":" + quoted(f.name) +
         ",\"value\":" + (n != nullptr ? number(*n) : quoted(std::get<std::string>(f.value))) +
         ",\"text\":" + quoted(f.text) + "}";
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
  std::string out = "{\"format\":\"stillmap-costs 1\",\n\"device\":" + quoted(t.device) +
                    ",\"driver\":" + quoted(t.driver) + ",\"commit\":" + quoted(t.commit);
  if (!t.hostcuda.empty()) out += ",\"hostcuda\":" + quoted(t.hostcuda);
  out += ",\n\"seconds\":" + number(t.seconds) + ",\"quick\":" + (t.quick ? "true" : "false");
  return out + ",\n\"rows\":" + lines_of(t.rows) + ",\n\"facts\":" + lines_of(t.facts) + "}\n";
}

}  // namespace stillmap::costs
