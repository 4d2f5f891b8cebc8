// Host memory that runs out becomes an error where the library is entered: the containers of the
// standard library throw std::bad_alloc, and no exception may leave the library. docs/errors.md
// For sources and internal headers only.
#pragma once

#include <new>
#include <stdexcept>
#include <system_error>
#include <type_traits>
#include <utility>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/operation.h"

namespace stillmap {

// Equals errc::out_of_memory and std::errc::not_enough_memory; the latter tells it from a device's.
inline tl::unexpected<error> host_out_of_memory() noexcept {
  return tl::unexpected<error>(error{std::make_error_code(std::errc::not_enough_memory),
                                     operation_scope::current(),
                                     "the host has no memory left",
                                     0,
                                     0,
                                     error_unit::none,
                                     {}});
}

// Returns act(), a result or status, or the error above where the host had no memory for it. `act`
// must leave everything as it was when an allocation in it throws. Locks that
// it requires are held by the caller, which clang does not see in here.
template <class Act>
STILLMAP_NO_THREAD_SAFETY_ANALYSIS auto with_host_memory(Act &&act) noexcept
    -> std::invoke_result_t<Act> {
  try {
    return std::forward<Act>(act)();
  } catch (const std::bad_alloc &) {
    return host_out_of_memory();
  } catch (const std::length_error &) {  // more than any container holds
    return host_out_of_memory();
  }
}

// The same in an operation_scope: how a public function is entered.
template <class Act>
STILLMAP_NO_THREAD_SAFETY_ANALYSIS auto with_host_memory(const char *operation, Act &&act) noexcept
    -> std::invoke_result_t<Act> {
  const operation_scope scope(operation);
  return with_host_memory(std::forward<Act>(act));
}

}  // namespace stillmap
