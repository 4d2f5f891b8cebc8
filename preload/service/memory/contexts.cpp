#include "preload/service/memory/contexts.h"

#include "preload/functions/known_device.h"
#include "preload/service/memory/queued_work.h"
#include "preload/service/serve.h"

namespace stillmap::preload {
constinit std::array<std::atomic<word>, contexts::most> contexts::all_{};
constinit std::atomic<word> contexts::first_{0};
constinit std::atomic<bool> contexts::several_{false};
constinit std::atomic<bool> contexts::too_many_{false};

void contexts::note(word context) noexcept {
  if (context == 0 || all_[0].load(std::memory_order_relaxed) == context) return;
  word first = 0;
  if (!first_.compare_exchange_strong(first, context) && first != context)
    several_.store(true, std::memory_order_release);
  for (const std::atomic<word> &place : all_) {
    if (place.load(std::memory_order_relaxed) == context) return;
  }
  // Two threads that note one context may take two places for it, which is harmless.
  for (std::atomic<word> &place : all_) {
    word none = 0;
    if (place.compare_exchange_strong(none, context) || none == context) return;
  }
  too_many_.store(true, std::memory_order_release);
}

void contexts::forget(word context) noexcept {
  if (context == 0) return;
  for (std::atomic<word> &place : all_) {
    word known = context;
    place.compare_exchange_strong(known, 0);
  }
}

namespace {

driver_code noting_created(driver_code result, word context) noexcept {
  if (result == code::success) contexts::note(*reinterpret_cast<const word *>(context));
  return result;
}

}  // namespace

driver_code serve(numbered<function::cuCtxSetCurrent>, word context) noexcept {
  contexts::note(context);
  return pass_on<function::cuCtxSetCurrent>(context);
}
driver_code serve(numbered<function::cuCtxPushCurrent_v2>, word context) noexcept {
  contexts::note(context);
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
  if (result == code::success) {
    queued_work::note_unseen_calls();
    known_device::never_again();
  }
  return result;
}

}  // namespace stillmap::preload
