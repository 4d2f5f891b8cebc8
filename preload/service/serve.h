// The served functions: each an overload for its number. All are called by the preload's wrappers.
#pragma once

#include "preload/functions/pass_on.h"
#include "preload/functions/served.h"
#include "preload/functions/work_flag.h"

namespace stillmap::preload {

#define STILLMAP_UNPACK(...) __VA_ARGS__
#define STILLMAP_DECLARE_SERVED(symbol, parameters) \
  driver_code serve(numbered<function::symbol>, STILLMAP_UNPACK parameters) noexcept;
STILLMAP_SERVED_FUNCTIONS(STILLMAP_DECLARE_SERVED)
#undef STILLMAP_DECLARE_SERVED
#undef STILLMAP_UNPACK

}  // namespace stillmap::preload
