// Random operations on a caching allocator of a small machine, every block checked and the books
// compared with the ledger after each. Not a test by itself: model and fault tests run it.
#pragma once

#include <optional>
#include <string>

#include "stillmap/vmm/driver.h"
#include "tests/support/op_sequence.h"

namespace stillmap::testing {

// A driver call that fails while the allocator makes it, counted over a whole sequence.
struct planned_fault {
  std::string call;
  std::uint64_t nth = 0;
  int code = 0;
};
struct heap_model_outcome {
  std::optional<op_failure> failed;
  bool fired = false;         // the planned fault was met
  driver_counts calls{};      // that the allocator made
  std::uint64_t refused = 0;  // allocations that failed for want of memory
  std::uint64_t pages_moved = 0, host_waits = 0;
};

// The first operation is `machine MIB SEED`. Others: alloc BYTES STREAM ALIGN ZERO, free I,
// free_on I STREAM, use I STREAM, trim PAGES, limit PAGES, settle.
heap_model_outcome run_heap_model(const op_sequence &ops,
                                  const std::optional<planned_fault> &fault = std::nullopt);
op_sequence generate_heap_ops(std::uint64_t seed, std::size_t count);

}  // namespace stillmap::testing
