// What the driver itself can do to a process (cuCheckpointProcess*, CUDA 12.8): its device memory
// becomes host memory and it lets go of its devices, so that CRIU can save it; and back.
// docs/criu.md
#pragma once

#include <sys/types.h>

#include <chrono>
#include <span>

#include "stillmap/vmm/driver.h"

namespace stillmap::process {

// Of a running process: its CUDA calls block, and its memory is brought into host memory.
// `pid`: another process of the same user, or this one. What is in the way of it: obstacles().
// Ensures: failure: it runs as before. (Where the driver does not unlock it either, which the sink
//          is told, thaw() is what to call.)
// Errors:  not_supported (a driver before CUDA 12.8, hostcuda, or what the driver cannot save),
//          busy (its calls did not end within `wait`), invalid_argument (no process that uses the
//          driver; not running: value = its process_state), the driver's.
// Cost:    three calls; the time is the memory's.
status freeze(const driver &d, pid_t pid, std::chrono::milliseconds wait = {});

// Of one that was frozen, also one that CRIU restored: its memory is on devices again and its calls
// go on. On others of the same kind, where `changes` has every one it had. One that runs: succeeds.
// Ensures: failure: it is as far as the driver got; call it again.
// Errors:  as freeze; corrupt (the driver could not put it together, for good).
status thaw(const driver &d, pid_t pid, std::span<const device_change> changes = {});

}  // namespace stillmap::process
