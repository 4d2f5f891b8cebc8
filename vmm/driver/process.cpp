// Driver calls for process checkpoints. The argument structs are declared here, because toolkits before
// 12.8 lack them; with a newer toolkit, static assertions compare them.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/driver/calls.h"

namespace stillmap {

using enum driver_call;

namespace {

struct lock_arguments {
  unsigned milliseconds = 0;
  unsigned reserved0 = 0;
  std::uint64_t reserved1[7] = {};
};

struct device_pair {
  unsigned char from[16], to[16];
};

struct restore_arguments {
  device_pair *pairs = nullptr;
  unsigned count = 0;
  char reserved0[52 - sizeof(device_pair *)] = {};
  std::uint64_t reserved1 = 0;
};

// All arguments of these two are reserved.
struct no_arguments {
  std::uint64_t reserved[8] = {};
};

#if CUDA_VERSION >= 12080
static_assert(sizeof(lock_arguments) == sizeof(CUcheckpointLockArgs));
static_assert(sizeof(no_arguments) == sizeof(CUcheckpointCheckpointArgs));
static_assert(sizeof(no_arguments) == sizeof(CUcheckpointUnlockArgs));
static_assert(sizeof(CUprocessState) == sizeof(int));
static_assert(static_cast<int>(process_state::failed) == CU_PROCESS_STATE_FAILED);
#endif
#if CUDA_VERSION >= 13000  // before, a restore could not change devices
static_assert(sizeof(device_pair) == sizeof(CUcheckpointGpuPair));
static_assert(sizeof(restore_arguments) == sizeof(CUcheckpointRestoreArgs));
static_assert(offsetof(restore_arguments, count) ==
              offsetof(CUcheckpointRestoreArgs, gpuPairsCount));
#endif

driver_access::request about(int pid) {
  return {static_cast<std::uint64_t>(pid), false, error_unit::none};
}

}  // namespace

result<process_state> driver::state_of_process(int pid) const {
  int state = 0;
  return driver_access::make<CheckpointProcessGetState>(*this, about(pid), pid, &state).map([&] {
    return static_cast<process_state>(state);
  });
}

status driver::lock_process(int pid, unsigned milliseconds) const {
  lock_arguments how;
  how.milliseconds = milliseconds;
  return driver_access::make<CheckpointProcessLock>(*this, about(pid), pid, &how);
}

status driver::checkpoint_process(int pid) const {
  no_arguments how;
  return driver_access::make<CheckpointProcessCheckpoint>(*this, about(pid), pid, &how);
}

status driver::restore_process(int pid, const device_change *changes, std::size_t count) const {
  if (count == 0) {  // the first drivers that could restore accept nothing else
    no_arguments how;
    return driver_access::make<CheckpointProcessRestore>(*this, about(pid), pid, &how);
  }
  return with_host_memory(name_of(CheckpointProcessRestore), [&] {
    std::vector<device_pair> pairs(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::copy(changes[i].from.begin(), changes[i].from.end(), pairs[i].from);
      std::copy(changes[i].to.begin(), changes[i].to.end(), pairs[i].to);
    }
    restore_arguments how;
    how.pairs = pairs.data();
    how.count = static_cast<unsigned>(count);
    return driver_access::make<CheckpointProcessRestore>(*this, about(pid), pid, &how);
  });
}

status driver::unlock_process(int pid) const {
  no_arguments how;
  return driver_access::make<CheckpointProcessUnlock>(*this, about(pid), pid, &how);
}

result<int> driver::restore_thread_of_process(int pid) const {
  int thread = 0;
  return driver_access::make<CheckpointProcessGetRestoreThreadId>(*this, about(pid), pid, &thread)
      .map([&] { return thread; });
}

}  // namespace stillmap
