#include "preload/service/memory/current_context.h"

#include "preload/service/serve.h"

namespace stillmap::preload {

int current_device() noexcept {
  number device = 0;
  return pass_on<function::cuCtxGetDevice>(reinterpret_cast<word>(&device)) == code::success
             ? static_cast<int>(device)
             : -1;
}

current_place current() noexcept {
  current_place out{current_device()};
  if (pass_on<function::cuCtxGetCurrent>(reinterpret_cast<word>(&out.context)) != code::success)
    out.context = 0;
  return out;
}

}  // namespace stillmap::preload
