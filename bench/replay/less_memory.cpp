#include "bench/replay/less_memory.h"

#include <fmt/format.h>

#include <utility>

#include "bench/replay/internal/failure.h"
#include "bench/replay/simulator.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::replay {

result<less_memory> less_memory::leave(const device &d, std::optional<std::uint64_t> bytes,
                                       bool keeps_to_limit) {
  less_memory out(d);
  if (!bytes) return out;
  STILLMAP_ASSIGN_OR_RETURN(const auto now, d.driver().memory_info_now());
  const std::uint64_t free = now.free.bytes();
  if (*bytes > free) {
    return fail(errc::invalid_argument,
                fmt::format("--capacity {} is more than the {} that are free on this device",
                            format_bytes(*bytes), format_bytes(free)));
  }
  if (d.driver().is_simulator()) {
    if (!occupy(d, free - *bytes)) {
      return fail(errc::not_supported, "the simulator refused a smaller device memory");
    }
    out.occupied_ = true;
  } else if (!keeps_to_limit) {
    physical_properties what;
    what.location = on_device(d.ordinal());
    const std::size_t ballast = round_down(free - *bytes, d.capabilities().page_bytes);
    if (ballast == 0) return out;
    STILLMAP_ASSIGN_OR_RETURN(out.ballast_, d.driver().create_physical(ballast, what));
  }
  return out;
}

less_memory::less_memory(less_memory &&o) noexcept
    : device_(o.device_),
      occupied_(std::exchange(o.occupied_, false)),
      ballast_(std::exchange(o.ballast_, physical_handle::none)) {}

less_memory::~less_memory() {
  if (occupied_) (void)occupy(device_, 0);
  if (ballast_ != physical_handle::none)
    report_if_failed(device_.driver().release_physical(ballast_));
}

}  // namespace stillmap::replay
