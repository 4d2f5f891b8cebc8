// The latest failure of each thread, as the C API describes it.
#pragma once

#include <array>

#include "stillmap/c_api.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::c_api {

// Not of strings, which would be destroyed before the last static destructor fails.
struct described_error {
  stillmap_error values{};  // its texts are below, or literals
  std::array<char, 256> subject{};
  std::array<char, 1024> message{};
};

// The error of the function with this name. Does without host memory where there is none.
void describe(const char *function, const error &e, described_error &into) noexcept;
// Remembers it as the thread's latest one.
stillmap_status remember(const char *function, const error &e) noexcept;
described_error &latest_error() noexcept;

stillmap_status status_of(const error &e) noexcept;
errc condition_of(int status) noexcept;  // of what a callback returned

}  // namespace stillmap::c_api
