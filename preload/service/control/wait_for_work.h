// Waits, no longer than asked, until nothing that the program has queued on the device is left.
#pragma once

#include <chrono>
#include <stop_token>

#include "stillmap/vmm/base/error.h"

namespace stillmap::preload {

enum class work_outcome { done, late, stopped, failed };
struct work_result {
  work_outcome outcome = work_outcome::done;
  status failure{};  // of `failed`
};

// The work of all contexts that the program has made current, and of the device's primary one.
//
// The driver can wait for a context only without an end. So a thread waits: where work does not end by the deadline,
// it stays until the work ends, and later calls are `late` at once until then.
// Requires: the program queues nothing meanwhile, and no stream captures a graph.
// Errors:   out_of_memory (a context could not be noted), the driver's, the system's (no thread).
// Cost:     one cuCtxSynchronize and two context switches for each context, and a thread.
work_result wait_for_queued_work(int ordinal, std::chrono::steady_clock::time_point deadline,
                                 const std::stop_token &stop);

}  // namespace stillmap::preload
