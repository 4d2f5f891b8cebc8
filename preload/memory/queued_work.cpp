#include "preload/memory/queued_work.h"

#include "preload/functions/serve.h"
#include "preload/memory/captures.h"

namespace stillmap::preload {

constinit std::atomic<bool> queued_work::there_{false};
constinit std::atomic<bool> queued_work::several_contexts_{false};
constinit std::atomic<word> queued_work::only_context_{0};

queued_work::outcome queued_work::wait(driver_code &result) noexcept {
  result = code::success;
  if (captures::under_way()) return outcome::capturing;
  if (!several_contexts_.load(std::memory_order_acquire) &&
      !there_.exchange(false, std::memory_order_acquire)) {
    return outcome::done;
  }
  result = pass_on<function::cuCtxSynchronize>();
  if (result == code::success) return outcome::done;
  note();
  return outcome::failed;
}

void queued_work::note_context(word context) noexcept {
  word known = 0;
  if (context == 0 || only_context_.compare_exchange_strong(known, context) || known == context)
    return;
  several_contexts_.store(true, std::memory_order_release);
}

}  // namespace stillmap::preload
