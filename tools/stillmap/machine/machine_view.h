// What the machine's device memory is used for: devices, the tasks on each that have a control socket, and the rest.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/control/requests.h"
#include "tools/stillmap/machine/device_usage.h"
#include "tools/stillmap/machine/process_identity.h"
#include "tools/stillmap/machine/task_filter.h"

namespace stillmap::tool {

// A wait for memory of a shared quota.
struct quota_wait {
  std::uint64_t bytes = 0;           // 0: it does not wait
  std::vector<std::uint32_t> asked;  // the processes that were asked for memory since it waits
};

// A task on one device. Bytes.
struct task_view {
  static constexpr std::size_t most_tags = 64;
  std::string socket;
  process_identity process;
  std::string trouble;  // why it did not say, or why it is not believed; empty: it did, and is
  // On the device: as the driver says, where it does; else what the task has mapped, and the driver does not count
  // for others.
  std::uint64_t held = 0;
  bool held_is_known = false;  // by the driver
  std::uint64_t mapped = 0, suspended = 0, published = 0;
  std::vector<control::tag_status> tags;  // at most most_tags, and the others as one without a name
  std::optional<control::memory_figures> memory;
  control::job_status job;
  std::optional<quota_wait>
      wait;           // nullopt: it takes part in no quota, or in one that cannot be read
  double growth = 0;  // of `held`, bytes a second since the last look

  // "runs", "suspended", "snapshot 40 %", "waits for 2 GiB of 4711", "no answer: …".
  std::string state() const;
};

struct device_view {
  std::string uuid, name;
  std::uint64_t total = 0, used = 0;  // bytes, as the driver says
  std::vector<task_view> tasks;
  // used = the tasks' `held` + this: programs without a control socket, and what the driver needs.
  std::uint64_t others = 0;
  std::size_t other_processes = 0;
};

struct machine_view {
  std::vector<device_view> devices;
  std::vector<task_view>
      without_device;            // did not answer, or named a device that the driver does not know
  bool driver_is_asked = false;  // false: there is no NVML, and the figures are those of the tasks
};

// Looks at the machine again and again. Threads: one at a time.
class machine_watch {
 public:
  // Beside abstract control sockets, those in `folders`. `timeout`: how long all tasks may take to answer together.
  // Only tasks that match all `filters` are seen; memory of others is that of others.
  machine_watch(std::vector<std::string> folders, std::chrono::milliseconds timeout,
                std::vector<task_filter> filters = {});
  ~machine_watch();

  // Errors: those of control::find_tasks, host memory.
  outcome<machine_view> look();

 private:
  struct sample {
    std::uint64_t held = 0;
    std::chrono::steady_clock::time_point at;
  };
  using task_key = std::pair<std::string, pid_t>;  // its socket, and its process

  process_identity identity_of(pid_t pid);
  double growth_of(const task_view &t, std::chrono::steady_clock::time_point now) const;

  const std::vector<std::string> folders_;
  const std::chrono::milliseconds timeout_;
  const std::vector<task_filter> filters_;
  std::unique_ptr<nvml> nvml_;  // null: there is none
  std::map<pid_t, process_identity> identities_;
  std::map<task_key, sample> last_;
};

}  // namespace stillmap::tool
