#include "stillmap/checkpoint/process/driver_process.h"

#include <algorithm>
#include <limits>

namespace stillmap::process {

status freeze(const driver &d, pid_t pid, std::chrono::milliseconds wait) {
  const auto state = d.state_of_process(pid);
  if (!state) return tl::unexpected(state.error());
  if (*state != process_state::running) {
    return make_error(errc::invalid_argument, "process::freeze", "the process does not run",
                  static_cast<std::uint64_t>(*state));
  }
  const auto most =
      static_cast<std::chrono::milliseconds::rep>(std::numeric_limits<unsigned>::max());
  if (status s = d.lock_process(
          pid,
          static_cast<unsigned>(std::clamp<std::chrono::milliseconds::rep>(wait.count(), 0, most)));
      !s) {
    return s;
  }
  status s = d.checkpoint_process(pid);
  if (!s) {
    if (const status back = d.unlock_process(pid); !back) report_background_error(back.error());
  }
  return s;
}

status thaw(const driver &d, pid_t pid, std::span<const device_change> changes) {
  auto state = d.state_of_process(pid);
  if (!state) return tl::unexpected(state.error());
  if (*state == process_state::failed) {
    return make_error(errc::corrupt, "process::thaw",
                  "the driver could not put the process together again");
  }
  if (*state == process_state::checkpointed) {
    if (status s = d.restore_process(pid, changes.data(), changes.size()); !s) return s;
    state = process_state::locked;
  }
  return *state == process_state::locked ? d.unlock_process(pid) : status();
}

}  // namespace stillmap::process
