// The service: a library of its own with Stillmap inside, which serves device memory and answers the operator.
//
// It lies beside this library and is loaded, for itself alone (RTLD_LOCAL), by the first call of a function that it
// serves. A program that never calls one has only this library, which needs nothing but libc; and no program finds
// the libraries that the service needs (OpenSSL, zstd) before its own.
#pragma once

#include <atomic>

#include "preload/functions/function_list.h"

namespace stillmap::preload {

// What the service gives: its function for each number, or null.
struct service_functions {
  void *all[function_count];
};
// The one function that the service exports, stillmap_preload_service. Returns nullptr to a preload that numbers
// functions otherwise.
using service_entry = const service_functions *(std::uint64_t numbering);

// Loads the service, or reports on stderr why it cannot be used: the driver then serves everything.
const service_functions *load_service() noexcept;

extern std::atomic<const service_functions *> loaded_service;

// The service's function; nullptr: the call is to be passed on.
inline void *service_function(function f) noexcept {
  const service_functions *service = loaded_service.load(std::memory_order_acquire);
  if (service == nullptr) [[unlikely]]
    service = load_service();
  return service->all[static_cast<std::size_t>(f)];
}

}  // namespace stillmap::preload
