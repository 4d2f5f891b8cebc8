#include "preload/service/memory/current_context.h"

#include "preload/service/serve.h"

namespace stillmap::preload {

namespace {

// What a newer driver has beside the table, a program that is linked to it calls without a wrapper.
void stop_if_driver_is_newer() noexcept {
  static const bool done = [] {
    int version = 0;
    if (pass_on<function::cuDriverGetVersion>(reinterpret_cast<word>(&version)) != code::success ||
        version > newest_version) {
      known_device::never_again();
    }
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

int ask_for_device() noexcept {
  stop_if_driver_is_newer();
  const std::uint32_t era = known_device::era();
  number device = 0;
  if (pass_on<function::cuCtxGetDevice>(reinterpret_cast<word>(&device)) != code::success)
    return -1;
  known_device::set(era, static_cast<int>(device));
  return static_cast<int>(device);
}

current_place current() noexcept {
  current_place out{current_device()};
  if (pass_on<function::cuCtxGetCurrent>(reinterpret_cast<word>(&out.context)) != code::success)
    out.context = 0;
  return out;
}

}  // namespace stillmap::preload
