// The process that is to survive: what it holds on the device, and how it is told what to do.
#pragma once

#include <string>

namespace criu_example {

// Fills device memory, writes "holding" to standard output, and waits for signals:
//   SIGUSR1  become fit to be saved: "fit"
//   SIGUSR2  go on: checks every byte and every address, uses the memory: "whole"; ends
// Returns the exit status. Lines that begin with "failed: " say what went wrong.
int hold_and_wait();

// The same without a device or any memory: what shows whether this machine lets CRIU work at all.
int only_wait();

}  // namespace criu_example
