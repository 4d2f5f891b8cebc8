// Makes the driver calls: refuses functions that the driver lacks, counts, calls, and translates the
// result.
#pragma once

#include "stillmap/vmm/driver.h"
#include "stillmap/vmm/driver/table.h"

namespace stillmap {

// The implementation's way into a driver; there is no other.
struct driver_access {
  // Which call it is and what was asked of it; travels into the error.
  struct what {
    driver_call call;
    std::uint64_t value = 0;
    bool takes_memory = false;  // out of memory: the error states how much was free
    error_unit unit = error_unit::bytes;
  };

  template <class... Parameters, class... Arguments>
  static status make(const driver &d, what w, CUresult(CUDAAPI *function)(Parameters...),
                     Arguments... arguments) {
    if (function == nullptr) return absent(w);
    return translate(d, w, raw(d, w.call, function, arguments...));
  }

  // For calls whose CUresult is an answer: NOT_READY.
  template <class... Parameters, class... Arguments>
  static result<bool> ask(const driver &d, what w, CUresult(CUDAAPI *function)(Parameters...),
                          Arguments... arguments) {
    if (function == nullptr) return absent(w);
    const CUresult r = raw(d, w.call, function, arguments...);
    if (r == CUDA_ERROR_NOT_READY) return false;
    return translate(d, w, r).map([] { return true; });
  }

  static void moved_to_device(const driver &d, std::size_t n) { bump(d.to_device_, n); }
  static void moved_to_host(const driver &d, std::size_t n) { bump(d.to_host_, n); }
  static void moved_on_device(const driver &d, std::size_t n) { bump(d.on_device_, n); }

  // A driver over an opened library. Never destroyed by anybody.
  static result<driver *> build(void *library, std::string path);

 private:
  template <class... Parameters, class... Arguments>
  static CUresult raw(const driver &d, driver_call call, CUresult(CUDAAPI *function)(Parameters...),
                      Arguments... arguments) {
    bump(d.calls_[static_cast<std::size_t>(call)], 1);
    return function(arguments...);
  }
  static void bump(std::atomic<std::uint64_t> &counter, std::uint64_t n) {
    counter.fetch_add(n, std::memory_order_relaxed);
  }
  static tl::unexpected<error> absent(const what &w);
  static status translate(const driver &d, const what &w, CUresult r);
};

}  // namespace stillmap
