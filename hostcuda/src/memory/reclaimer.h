// Background reclaimer: one thread that zeroes released pages and releases files. The first job
// starts it. It does not keep the process alive.
#pragma once

#include <functional>

namespace hostcuda {

// Queues `job`. Jobs run in order, without a lock held.
void do_later(std::function<void()> job);

// Waits until all queued jobs are done. Requires: the caller holds no lock that a job takes.
void finish_later();

}  // namespace hostcuda
