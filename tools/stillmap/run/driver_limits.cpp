#include "tools/stillmap/run/driver_limits.h"

#include <fmt/format.h>

#include <cstdlib>

#include "tools/stillmap/common/outcome.h"
#include "tools/stillmap/machine/control_group.h"
#include "tools/stillmap/machine/device_usage.h"

namespace stillmap::tool {
namespace {

std::string bytes_or_nothing(std::uint64_t bytes) {
  return bytes == memory_limits::none ? "" : std::to_string(bytes);
}

}  // namespace

driver_limits read_driver_limits() {
  driver_limits out;
  const std::string group = own_control_group();
  if (group.empty()) return out;
  const auto gpus = nvml::open_with_limits();
  if (!gpus) return out;
  for (const auto &[uuid, l] : (*gpus)->all_limits(group)) {
    out.variable += out.variable.empty() ? "STILLMAP_PRELOAD_DEVICE_LIMITS=" : ",";
    out.variable +=
        fmt::format("{}={}:{}", uuid, bytes_or_nothing(l.hard), bytes_or_nothing(l.soft));
    out.lines.push_back(fmt::format("{}: {}", printable(uuid), text_of(l, "NVML", "NVML")));
  }
  // The smaller one of a device holds.
  const char *const own = ::secure_getenv("STILLMAP_PRELOAD_DEVICE_LIMITS");
  if (!out.variable.empty() && own != nullptr && *own != 0) out.variable += std::string(",") + own;
  return out;
}

}  // namespace stillmap::tool
