// A process killed at any one of the system calls it makes.
#pragma once

#include <cstddef>
#include <functional>

namespace stillmap::testing {

// Lets `work` make `n` steps in a process of its own, each up to or out of a system call, and kills
// it. True: it came to its end before, and said that it worked. `forbidden`: this machine lets
// nobody trace system calls.
bool kill_after(std::size_t n, const std::function<bool()> &work, bool &forbidden);

}  // namespace stillmap::testing
