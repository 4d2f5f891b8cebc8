// How each function of the C API is entered and left: no exception leaves it, and a failure is remembered for
// stillmap_error_last().
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "stillmap/c_api.h"
#include "stillmap/c_api/internal/latest_error.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::c_api {

// The process is about to use a driver. Fails in a forked child of a process that did.
status note_use() noexcept;
bool forked_after_use() noexcept;
tl::unexpected<error> made_before_fork() noexcept;

// Runs act(), which returns a status, as the function with this name.
template <class Act>
stillmap_status enter(const char *operation, Act &&act) noexcept {
  const operation_scope scope(operation);
  const status done =
      forked_after_use() ? status(made_before_fork()) : with_host_memory(std::forward<Act>(act));
  return done ? STILLMAP_OK : remember(operation, done.error());
}

// A pointer for the caller is NULL unless the call succeeds.
template <class Pointer>
void clear_output(Pointer *output) noexcept {
  if (output != nullptr) *output = nullptr;
}

inline tl::unexpected<error> missing(const char *reason) noexcept {
  return make_error(errc::invalid_argument, reason);
}

}  // namespace stillmap::c_api
