// What a wrapper does: it passes the call on, unless the service serves this function, or this library does.
#pragma once

#include "preload/functions/pass_on.h"
#include "preload/functions/served.h"
#include "preload/functions/work_flag.h"
#include "preload/load_service.h"

namespace stillmap::preload {

// The caller of the function that is looked up through cuGetProcAddress: another interposer is not given what would
// lead back to it.
extern constinit thread_local const void *lookup_caller;
constexpr bool looks_up(function f) {
  return f == function::cuGetProcAddress || f == function::cuGetProcAddress_v2 ||
         f == function::cuGetProcAddress_v2_ptsz;
}

template <function f, class... Arguments>
driver_code serve(numbered<f>, Arguments... arguments) noexcept {
  if constexpr (is_served(f)) {
    if (void *const served = service_function(f)) {
      return reinterpret_cast<driver_code (*)(Arguments...)>(served)(arguments...);
    }
  }
  const driver_code result = pass_on<f>(arguments...);
  if constexpr (waits(f)) note_work();
  return result;
}

// How the program finds the driver's functions: lookup/proc_address.cpp.
driver_code serve(numbered<function::cuGetProcAddress>, word name, word to, number version,
                  word flags) noexcept;
driver_code serve(numbered<function::cuGetProcAddress_v2>, word name, word to, number version,
                  word flags, word status) noexcept;
driver_code serve(numbered<function::cuGetProcAddress_v2_ptsz>, word name, word to, number version,
                  word flags, word status) noexcept;

}  // namespace stillmap::preload
