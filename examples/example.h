// Helpers of the examples: open a device, print errors, copy bytes.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/vmm/context.h"
#include "stillmap/vmm/device.h"

namespace example {

// Prints the error and ends the program. A library would return it instead (vmm/base/error.h).
[[noreturn]] inline void stop(const std::string &why) {
  std::fprintf(stderr, "failed: %s\n", why.c_str());
  std::exit(1);
}

inline void must(const stillmap::status &s) {
  if (!s) stop(s.error().message());
}
template <class T>
T must(stillmap::result<T> r) {
  if (!r) stop(r.error().message());
  return std::move(*r);
}
inline void check(bool holds, const char *claim) {
  if (!holds) stop(std::string("check failed: ") + claim);
  std::printf("ok: %s\n", claim);
}

// Opens the first device. Ends the program successfully if the device cannot map pages, which `what`
// needs.
inline stillmap::device open_mapping_device(const char *what) {
  auto d = must(stillmap::device::open());
  if (!d.capabilities().vmm) {
    std::printf("skipped: %s needs virtual memory management, which %s lacks\n", what,
                d.name().c_str());
    std::exit(0);
  }
  return d;
}

inline void write(const stillmap::device &d, stillmap::device_address to, const void *from,
                  std::size_t bytes) {
  const stillmap::context_guard current(d.driver(), d.context());
  must(d.driver().copy_to_device(to, from, bytes));
}
template <class T>
std::vector<T> read(const stillmap::device &d, stillmap::device_address from, std::size_t n) {
  std::vector<T> out(n);
  const stillmap::context_guard current(d.driver(), d.context());
  must(d.driver().copy_to_host(out.data(), from, n * sizeof(T)));
  return out;
}

}  // namespace example
