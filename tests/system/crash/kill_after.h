// Runs a function in a child process that is killed at a given system call.
#pragma once

#include <cstddef>
#include <functional>

namespace stillmap::testing {

// Runs `work` in a child process for `n` steps, each an entry to or exit from a system call, then
// kills it. True: it finished before and succeeded. `forbidden`: this machine does not permit
// tracing system calls.
bool kill_after(std::size_t n, const std::function<bool()> &work, bool &forbidden);

}  // namespace stillmap::testing
