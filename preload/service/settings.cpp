#include "preload/service/settings.h"

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

settings read() {
  settings out;
  if (const char *const text = variable("STILLMAP_PRELOAD_LIMIT")) {
    const std::string_view s = text;
    std::size_t bytes = 0;
    const auto [end, failed] = std::from_chars(s.data(), s.data() + s.size(), bytes);
    if (failed == std::errc() && end == s.data() + s.size() && bytes != 0) {
      out.limit = bytes;
    } else {
      std::fprintf(stderr,
                   "stillmap: STILLMAP_PRELOAD_LIMIT=%s is no number of bytes: there is no limit\n",
                   text);
    }
  }
  if (const char *const text = variable("STILLMAP_PRELOAD_TAG")) out.tag = text;
  if (const char *const text = variable("STILLMAP_PRELOAD_STATS")) out.stats = text;
  return out;
}

}  // namespace

// Never destroyed: calls may come at the program's very end.
const settings &given_settings() {
  static const settings *const given = new settings(read());
  return *given;
}

}  // namespace stillmap::preload
