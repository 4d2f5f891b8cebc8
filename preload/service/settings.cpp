#include "preload/service/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace stillmap::preload {
namespace {

const char *variable(const char *name) noexcept {
  const char *const text = ::secure_getenv(name);
  return text != nullptr && *text != 0 ? text : nullptr;
}

// A positive number; 0: there is none, which is reported where the variable is set.
std::uint64_t number_of(const char *name, const char *unit, const char *otherwise) {
  const char *const text = variable(name);
  if (text == nullptr) return 0;
  const std::string_view s = text;
  std::uint64_t number = 0;
  const auto [end, failed] = std::from_chars(s.data(), s.data() + s.size(), number);
  if (failed == std::errc() && end == s.data() + s.size() && number != 0) return number;
  std::fprintf(stderr, "stillmap: %s=%s is no number of %s: %s\n", name, text, unit, otherwise);
  return 0;
}

settings read() {
  settings out;
  if (const auto bytes = number_of("STILLMAP_PRELOAD_LIMIT", "bytes", "there is no limit"))
    out.limit = bytes;
  if (const char *const text = variable("STILLMAP_PRELOAD_TAG")) out.tag = text;
  if (const char *const text = variable("STILLMAP_PRELOAD_IPC")) {
    const std::string_view s = text;
    if (s == "1" || s == "0") {
      out.ipc = s == "1" ? settings::choice::yes : settings::choice::no;
    } else {
      std::fprintf(stderr, "stillmap: STILLMAP_PRELOAD_IPC=%s is neither 0 nor 1\n", text);
    }
  }
  if (const char *const text = variable("STILLMAP_PRELOAD_STATS")) out.stats = text;
  if (const char *const text = variable("STILLMAP_PRELOAD_CONTROL")) {
    out.control = true;
    if (std::string_view(text) != "1") out.control_folder = text;
  }
  constexpr std::uint64_t longest = 24 * 3'600'000;
  if (const auto ms = number_of("STILLMAP_PRELOAD_CONTROL_TIMEOUT", "milliseconds", "it is 10000"))
    out.control_timeout = std::chrono::milliseconds(std::min(ms, longest));
  return out;
}

}  // namespace

// Never destroyed: calls may come at the program's very end.
const settings &given_settings() {
  static const settings *const given = new settings(read());
  return *given;
}

}  // namespace stillmap::preload
