// Counters of hostcuda_get_counters() that no registry keeps. hostcuda_reset() sets all of them to
// zero.
#pragma once

#include <atomic>
#include <cstdint>

namespace hostcuda {

struct shared_counters {
  std::atomic<std::uint64_t> bytes_htod{0};
  std::atomic<std::uint64_t> bytes_dtoh{0};
  std::atomic<std::uint64_t> bytes_dtod{0};
  std::atomic<std::uint64_t> bytes_set{0};
  std::atomic<std::uint64_t> first_touch_ns{0};
  std::atomic<std::uint64_t> live_streams{0};      // execution side
  std::atomic<std::uint64_t> live_events{0};       // execution side
  std::atomic<std::uint64_t> violations{0};        // execution side
  std::atomic<std::uint64_t> skipped_launches{0};  // execution side
};

shared_counters &counters();

}  // namespace hostcuda
