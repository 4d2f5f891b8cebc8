// Work that a GPU does beside everything else, and a host must do at some time: clearing what was
// released, giving files back. One thread, started by its first job; it never keeps a process.
#pragma once

#include <functional>

namespace hostcuda {

// Runs `job` soon, after those before it. Jobs take locks of their own.
void do_later(std::function<void()> job);

// Returns when all that was asked for before is done. Requires: no lock that a job takes is held.
void finish_later();

}  // namespace hostcuda
