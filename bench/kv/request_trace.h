// The requests that a run serves: recorded or generated.
#pragma once

#include <string>
#include <vector>

#include "bench/kv/arguments.h"
#include "bench/replay/serving/serving.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::kv_bench {

// Errors: those of read_requests; invalid_argument (a request that is longer than the cache).
result<std::vector<replay::serving_request>> requests_of(const kv_arguments &given);
std::string name_of(const kv_arguments &given);

}  // namespace stillmap::kv_bench
