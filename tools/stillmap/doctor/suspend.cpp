#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "stillmap/vmm/context.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/doctor/checkpoint.h"

namespace stillmap::tool {
namespace {

constexpr std::uint64_t to_try = std::uint64_t{64} << 20;

}  // namespace

finding host_room(std::uint64_t device_bytes, std::optional<std::uint64_t> host_bytes) {
  finding f{"suspend_room", "suspend: room", works::yes, "", ""};
  if (!host_bytes) {
    f.says =
        fmt::format("free host memory is unknown; the device has {}", format_bytes(device_bytes));
    return f;
  }
  f.says = fmt::format("{} of host memory free for the contents of {} of device memory",
                       format_bytes(*host_bytes), format_bytes(device_bytes));
  if (*host_bytes >= device_bytes) return f;
  f.does = works::limited;
  f.says += ": not all of it can be suspended to pinned memory at once";
  f.fix = "suspend to a file (stillmap task suspend --to file), or one tag at a time";
  return f;
}

finding pinned_memory(std::uint64_t tried, const std::string &refused,
                      std::optional<std::uint64_t> limit) {
  finding f{"pinned_memory", "suspend: pinned memory", works::yes, "", ""};
  const std::string allowed =
      limit ? format_bytes(*limit) + " may be locked (ulimit -l)" : "no limit of locked memory";
  if (refused.empty()) {
    f.says = fmt::format("{} pinned; {}", format_bytes(tried), allowed);
    return f;
  }
  f.does = works::no;
  f.says = fmt::format("{} could not be pinned: {}; {}", format_bytes(tried), refused, allowed);
  f.fix = limit && *limit < tried
              ? "ulimit -l unlimited (LimitMEMLOCK=infinity in systemd, --ulimit "
                "memlock=-1 for containers)"
              : "free host memory, or a larger limit of the control group";
  return f;
}

std::vector<finding> suspend_findings(const device &d) {
  if (!d.capabilities().vmm) {
    return {{"suspend_room", "suspend", works::no,
             "without virtual memory management, addresses cannot outlive their memory", ""}};
  }
  rlimit locked = {};
  std::optional<std::uint64_t> limit;
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY) {
    limit = locked.rlim_cur;
  }
  const auto free = available_host_memory();
  const std::uint64_t bytes =
      std::min(to_try, std::max<std::uint64_t>(4096, free.value_or(to_try)));
  const context_guard guard(d.driver(), d.context());
  const auto pinned = d.driver().allocate_host(static_cast<std::size_t>(bytes));
  const std::string refused = pinned ? "" : pinned.error().message();
  if (pinned) (void)d.driver().free_host(*pinned);  // nothing to do about a failure
  return {host_room(d.total_memory().bytes(), free), pinned_memory(bytes, refused, limit)};
}

}  // namespace stillmap::tool
