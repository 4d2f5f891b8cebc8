// Calls a function as the program would have reached it without this library.
#pragma once

#include "preload/functions/function_list.h"

namespace stillmap::preload {

// Looks for what a wrapper passes on to, for a program that is linked to the function and so has looked up
// nothing; sets it. Null: no library that is loaded has it.
STILLMAP_FOR_SERVICE void *find_next(function f) noexcept;

// What a wrapper returns where no library has its function.
STILLMAP_FOR_SERVICE driver_code not_found(function f) noexcept;

template <function f, class... Arguments>
driver_code pass_on(Arguments... arguments) noexcept {
  void *next = next_of(f);
  if (next == nullptr) [[unlikely]] {
    next = find_next(f);
    if (next == nullptr) return not_found(f);
  }
  return reinterpret_cast<driver_code (*)(Arguments...)>(next)(arguments...);
}

// Selects an overload of serve().
template <function>
struct numbered {};

}  // namespace stillmap::preload
