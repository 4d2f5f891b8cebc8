// What a function that is not served does.
#pragma once

#include <atomic>

#include "hostcuda/cudart/src/runtime.h"

namespace cudart {

// Returns cudaErrorNotSupported. With HOSTCUDA=log=unsupported, prints the name the first time.
cudaError_t not_served(const char *name, std::atomic<bool> *told);

}  // namespace cudart
