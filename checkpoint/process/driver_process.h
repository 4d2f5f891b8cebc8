// The CUDA driver's own process checkpoints (cuCheckpointProcess*, CUDA 12.8): device memory moves
// to host memory and the driver releases its devices, so that CRIU can dump the process; and back.
// docs/criu.md
#pragma once

#include <sys/types.h>

#include <chrono>
#include <span>

#include "stillmap/vmm/driver.h"

namespace stillmap::process {

// Locks and checkpoints a running process: its CUDA calls block, and its device memory moves to host
// memory. `pid` is another process of the same user, or this one; find_blockers() tells what
// prevents it. A `timeout` of 0 waits without limit for the process's CUDA calls to end.
// Ensures: failure: the process runs as before. (If the driver refuses to unlock it too, that is
//          reported to the error sink; then call thaw().)
// Errors:  not_supported (a driver before CUDA 12.8, the simulator, or memory that the driver cannot
//          save), busy (CUDA calls did not end within `timeout`), invalid_argument (no process that
//          uses the driver, or not a running one), the driver's.
// Cost:    three calls; the time is that of copying the memory.
status freeze(const driver &d, pid_t pid, std::chrono::milliseconds timeout = {});

// Restores and unlocks a process that was frozen, also one that CRIU restored: its memory moves back
// to devices and its CUDA calls continue. `changes` maps every device of the process to another of
// the same kind; empty: the same devices. Succeeds for a process that runs already.
// Ensures: failure: the process is in the last state that the driver reached; call thaw() again.
// Errors:  as freeze(); corrupt (the driver cannot restore the process at all).
status thaw(const driver &d, pid_t pid, std::span<const device_change> changes = {});

}  // namespace stillmap::process
