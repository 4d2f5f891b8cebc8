#include "preload/functions/pass_on.h"

#include "preload/lookup/loaded_objects.h"

namespace stillmap::preload {

void *find_next(function f) noexcept {
  void *const found = find_behind_us(symbol_of(f));
  if (found != nullptr) set_next(f, found);
  return next_of(f);
}

// A program that is linked to the driver would not have started without the function.
driver_code not_found(function f) noexcept {
  return find_next(function::cuInit) == nullptr || f == function::cuInit ? code::no_device
                                                                         : code::not_supported;
}

}  // namespace stillmap::preload
