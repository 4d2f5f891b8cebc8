// The process that CRIU dumps and restores: the device memory that it holds, and its signals.
#pragma once

#include <string>

namespace criu_example {

// Fills device memory, prints "ready" and waits for signals:
//   SIGUSR1  prepares for a checkpoint, and prints "prepared"
//   SIGUSR2  resumes, checks every byte and every address, uses the memory, prints "resumed", ends
// Returns the exit status. Lines that begin with "failed: " are errors.
int run_task();

// The same without a device: shows whether CRIU works on this machine at all.
int run_without_device();

}  // namespace criu_example
