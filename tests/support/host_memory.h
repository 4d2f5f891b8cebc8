// Counts the host allocations of the calling thread, and makes chosen ones fail. Other threads are
// excluded: hostcuda's stream threads allocate in the same process. The driver's own allocations never
// fail. Replaces operator new.
#pragma once

#include <cstdint>

namespace stillmap::testing {

// How many the calling thread has made, and the bytes of all of them, also of those that it has freed since.
std::uint64_t host_allocations();
std::uint64_t host_allocated_bytes();

// While it exists, the nth host allocation of the calling thread from now on throws std::bad_alloc
// (0: the next one; the driver's are passed over), and with `all_after` each one after it, too. At most one at a time in a thread.
class fail_host_allocation {
 public:
  explicit fail_host_allocation(std::uint64_t nth, bool all_after = false);
  ~fail_host_allocation();
  fail_host_allocation(const fail_host_allocation &) = delete;
  fail_host_allocation &operator=(const fail_host_allocation &) = delete;

  bool happened() const;            // one has failed
  std::uint64_t failed_at() const;  // which, counted like `nth`: the first
  void stop();                      // none fails any more
};

// While it exists, host allocations of the calling thread are neither counted nor fail: for what a test
// allocates between the calls that it tests.
class allow_host_allocations {
 public:
  allow_host_allocations();
  ~allow_host_allocations();
  allow_host_allocations(const allow_host_allocations &) = delete;
  allow_host_allocations &operator=(const allow_host_allocations &) = delete;
};

}  // namespace stillmap::testing
