// What makes freeing memory always wait: more than one context, as the program makes them current, and functions of
// the driver that no wrapper sees.
#include "preload/service/memory/queued_work.h"
#include "preload/service/serve.h"

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

driver_code serve(numbered<function::cuGetExportTable>, word table, word id) noexcept {
  const driver_code result = pass_on<function::cuGetExportTable>(table, id);
  if (result == code::success) queued_work::note_unseen_calls();
  return result;
}

}  // namespace stillmap::preload
