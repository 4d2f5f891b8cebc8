// Memory that the driver serves ends with its context.
#include "preload/service/memory/captures.h"
#include "preload/service/memory/contexts.h"
#include "preload/service/memory/serve_by_driver.h"

namespace stillmap::preload {
namespace {

// Calls what may end the context. What goes with it is taken out before, because a later context may have the same
// handle; lives(): whether the context is still there after a call that succeeded.
template <class Call, class Lives>
driver_code end_context(word context, Call call, Lives lives) noexcept {
  const bool known = contexts::forget(context);
  captures::mark(context);
  auto held = served_memory::take_out_context(context);
  const driver_code result = call();
  if (result == code::success && !lives()) {
    captures::end_marked(context);
  } else {
    captures::unmark(context);
    if (!held.empty()) served_memory::put_back(std::move(held));
    if (known) contexts::note(context);
  }
  note_work();
  return result;
}

template <class Call>
driver_code destroy(word context, Call call) noexcept {
  return end_context(context, call, [] { return false; });
}

// The primary context of a device, where it has one.
word primary_context(number device) noexcept {
  number flags = 0, active = 0;
  word context = 0;
  if (pass_on<function::cuDevicePrimaryCtxGetState>(device, reinterpret_cast<word>(&flags),
                                                    reinterpret_cast<word>(&active)) !=
          code::success ||
      active == 0 ||
      pass_on<function::cuDevicePrimaryCtxRetain>(reinterpret_cast<word>(&context), device) !=
          code::success) {
    return 0;
  }
  pass_on<function::cuDevicePrimaryCtxRelease_v2>(device);
  return context;
}

template <class Call>
driver_code release_primary(number device, Call call) noexcept {
  if (!served_memory::any() && !captures::under_way()) return free_by_driver({}, call);
  // Others may have retained it.
  return end_context(primary_context(device), call, [&] { return primary_context(device) != 0; });
}

}  // namespace

// Its last use ends a context.
driver_code serve(numbered<function::cuCtxDetach>, word context) noexcept {
  return end_context(
      context, [&] { return pass_on<function::cuCtxDetach>(context); },
      [&] {
        number version = 0;
        return pass_on<function::cuCtxGetApiVersion>(context, reinterpret_cast<word>(&version)) ==
               code::success;
      });
}
driver_code serve(numbered<function::cuCtxDestroy>, word context) noexcept {
  return destroy(context, [&] { return pass_on<function::cuCtxDestroy>(context); });
}
driver_code serve(numbered<function::cuCtxDestroy_v2>, word context) noexcept {
  return destroy(context, [&] { return pass_on<function::cuCtxDestroy_v2>(context); });
}
driver_code serve(numbered<function::cuDevicePrimaryCtxRelease>, number device) noexcept {
  return release_primary(device,
                         [&] { return pass_on<function::cuDevicePrimaryCtxRelease>(device); });
}
driver_code serve(numbered<function::cuDevicePrimaryCtxRelease_v2>, number device) noexcept {
  return release_primary(device,
                         [&] { return pass_on<function::cuDevicePrimaryCtxRelease_v2>(device); });
}
driver_code serve(numbered<function::cuDevicePrimaryCtxReset>, number device) noexcept {
  return release_primary(device,
                         [&] { return pass_on<function::cuDevicePrimaryCtxReset>(device); });
}
driver_code serve(numbered<function::cuDevicePrimaryCtxReset_v2>, number device) noexcept {
  return release_primary(device,
                         [&] { return pass_on<function::cuDevicePrimaryCtxReset_v2>(device); });
}

}  // namespace stillmap::preload
