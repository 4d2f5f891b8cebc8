// Random operations on a caching allocator of a small machine. After each, every block is checked
// and the statistics are compared with the ledger. The model and fault tests run it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/vmm/driver.h"
#include "tests/support/op_sequence.h"

namespace stillmap::testing {

// A driver call that fails while the allocator makes it, counted over a whole sequence.
struct planned_fault {
  std::string call;
  std::uint64_t nth = 0;
  int code = 0;
};
// Driver calls that fail all the time, here and there: before each operation one is drawn of those
// named, and of the next of its calls the nth. An allocation or a trim that fails is tried again,
// with others failing, and at last with none.
struct steady_faults {
  std::vector<std::string> calls;
  std::uint64_t seed = 1;
};
struct fault_tally {
  std::map<std::pair<std::string, int>, std::uint64_t> met;  // by call and code
  std::uint64_t said = 0, served = 0;  // the operation failed; or was done all the same
};
struct heap_model_outcome {
  std::optional<op_failure> failed;
  bool fired = false;         // the planned fault was met
  driver_counts calls{};      // that the allocator made
  std::uint64_t refused = 0;  // allocations that failed for want of memory
  std::uint64_t pages_moved = 0, pages_recalled = 0, host_waits = 0;
  fault_tally faults;  // of steady_faults
};

// The first operation is `machine MIB SEED SCALE`: the heap's pages are SCALE times the granularity.
// Others: alloc BYTES STREAM ALIGN ZERO, free I,
// free_on I STREAM, use I STREAM, free_nth I (the Ith by age), trim PAGES, limit PAGES, settle.
heap_model_outcome run_heap_model(const op_sequence &ops,
                                  const std::optional<planned_fault> &fault = std::nullopt);
heap_model_outcome run_heap_model(const op_sequence &ops, const steady_faults &faults);
op_sequence generate_heap_ops(std::uint64_t seed, std::size_t count);
// The same iteration of several streams again and again, in about as much memory as it needs.
op_sequence generate_heap_loop(std::uint64_t seed, std::size_t iterations);

}  // namespace stillmap::testing
