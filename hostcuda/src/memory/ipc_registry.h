// The blocks that other processes may open by legacy IPC, and those of other processes that this one
// has opened. Guarded by the_memory().mutex.
#pragma once

#include <map>
#include <unordered_map>

#include "hostcuda/src/memory/memory_state.h"
#include "hostcuda/src/shared_file.h"

namespace hostcuda {

struct ipc_import {
  file_name from{};  // the description of the block
  int location = 0;  // of the exporting device
  context *ctx = nullptr;
  std::uint64_t opened = 0;
};

struct ipc_registry {
  std::unordered_map<std::uint64_t, shared_file> exported;  // the descriptions, by block id
  std::map<CUdeviceptr, ipc_import> imported;
};

ipc_registry &ipc();

// Whether a block has a handle: memory of cuMemAlloc that this process owns.
bool legacy_ipc_capable(const block &k);

// Called when a block that is exported or imported is removed: makes its handle void.
void forget_shared_locked(CUdeviceptr at, const block &k);

}  // namespace hostcuda
