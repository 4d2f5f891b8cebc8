// The program's contexts, as it makes them current: with more than one, freeing memory always waits.
#include "preload/functions/serve.h"

namespace stillmap::preload {
namespace {

driver_code noting_created(driver_code result, word context) noexcept {
  if (result == code::success) queued_work::note_context(*reinterpret_cast<const word *>(context));
  return result;
}

}  // namespace

driver_code serve(numbered<function::cuCtxSetCurrent>, word context) noexcept {
  queued_work::note_context(context);
  return pass_on<function::cuCtxSetCurrent>(context);
}
driver_code serve(numbered<function::cuCtxPushCurrent_v2>, word context) noexcept {
  queued_work::note_context(context);
  return pass_on<function::cuCtxPushCurrent_v2>(context);
}
driver_code serve(numbered<function::cuCtxCreate_v2>, word context, number flags,
                  number device) noexcept {
  return noting_created(pass_on<function::cuCtxCreate_v2>(context, flags, device), context);
}
driver_code serve(numbered<function::cuCtxCreate_v3>, word context, word affinities, number count,
                  number flags, number device) noexcept {
  return noting_created(
      pass_on<function::cuCtxCreate_v3>(context, affinities, count, flags, device), context);
}
driver_code serve(numbered<function::cuCtxCreate_v4>, word context, word parameters, number flags,
                  number device) noexcept {
  return noting_created(pass_on<function::cuCtxCreate_v4>(context, parameters, flags, device),
                        context);
}

}  // namespace stillmap::preload
