#include "tools/stillmap/machine/control_group.h"

#include <fmt/format.h>

#include <fstream>

#include "tools/stillmap/common/size.h"

namespace stillmap::tool {

std::string text_of(const memory_limits &l, const char *hard, const char *soft) {
  std::string out;
  if (l.hard != memory_limits::none) {
    out = fmt::format("at most {} for this control group ({}), of which {} are used",
                      format_bytes(l.hard), hard, format_bytes(l.used));
  }
  if (l.soft != memory_limits::none) {
    out += fmt::format(
        "{}{} are certain ({}); beyond them, the driver may evict memory or "
        "end a process",
        out.empty() ? "" : "; ", format_bytes(l.soft), soft);
  }
  return out;
}

std::string own_control_group() {
  std::ifstream from("/proc/self/cgroup");
  for (std::string line; std::getline(from, line);) {
    if (line.starts_with("0::/")) return "/sys/fs/cgroup" + (line == "0::/" ? "" : line.substr(3));
  }
  return {};
}

}  // namespace stillmap::tool
