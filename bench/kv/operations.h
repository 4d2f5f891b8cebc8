// What the scheduler asks of an allocator of blocks, written to a file: for allocators that this program cannot link.
#pragma once

#include <string>
#include <vector>

#include "bench/kv/serving_model.h"
#include "bench/replay/serving/serving.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::kv_bench {

// The first line is a JSON object: the shape, the number of blocks, the cost table. Then one line a step: what is
// wanted after it, in bytes; "aN" for an allocation of N blocks; "fA-B,C-D" for a call that frees blocks. Blocks are
// named by the order of their allocation, from 0. Shared blocks are freed when nobody uses them any more.
// Errors: io_error (the file).
status write_operations(const std::string &path, const serving_model &m,
                        const std::vector<replay::serving_request> &requests);

}  // namespace stillmap::kv_bench
