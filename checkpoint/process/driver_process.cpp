#include "stillmap/checkpoint/process/driver_process.h"

#include <algorithm>
#include <limits>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::process {

status freeze(const driver &d, pid_t pid, std::chrono::milliseconds timeout) {
  const operation_scope scope("process::freeze");
  STILLMAP_ASSIGN_OR_RETURN(const process_state state, d.state_of_process(pid));
  if (state != process_state::running) {
    return make_error(errc::invalid_argument, "the process is not running",
                      static_cast<std::uint64_t>(state));
  }
  using count = std::chrono::milliseconds::rep;
  const auto limited =
      std::clamp<count>(timeout.count(), 0, count{std::numeric_limits<unsigned>::max()});
  STILLMAP_RETURN_IF_ERROR(d.lock_process(pid, static_cast<unsigned>(limited)));
  status s = d.checkpoint_process(pid);
  if (!s) {
    if (const status undo = d.unlock_process(pid); !undo) report_background_error(undo.error());
  }
  return s;
}

status thaw(const driver &d, pid_t pid, std::span<const device_change> changes) {
  return with_host_memory("process::thaw", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(process_state state, d.state_of_process(pid));
    if (state == process_state::failed) {
      return make_error(errc::corrupt, "the driver cannot restore the process");
    }
    if (state == process_state::checkpointed) {
      STILLMAP_RETURN_IF_ERROR(d.restore_process(pid, changes.data(), changes.size()));
      state = process_state::locked;
    }
    return state == process_state::locked ? d.unlock_process(pid) : status();
  });
}

}  // namespace stillmap::process
