#include "preload/service/memory/queued_work.h"

#include "preload/service/serve.h"

namespace stillmap::preload {

constinit std::atomic<int> queued_work::waits_{0};
constinit std::atomic<bool> queued_work::always_{false};

queued_work::outcome queued_work::wait_now(driver_code &result, int ordinal) noexcept {
  waits_.fetch_add(1, std::memory_order_relaxed);
  work_may_be_queued.exchange(false, std::memory_order_acq_rel);
  result = wait_for(ordinal);
  if (result != code::success) note_work();
  waits_.fetch_sub(1, std::memory_order_release);
  return result == code::success ? outcome::done : outcome::failed;
}

// The work of the current context, and of the device's primary one where that is another device.
driver_code queued_work::wait_for(int ordinal) noexcept {
  number device = 0;
  const bool current =
      pass_on<function::cuCtxGetDevice>(reinterpret_cast<word>(&device)) == code::success;
  if (current) {
    const driver_code result = pass_on<function::cuCtxSynchronize>();
    if (result != code::success || static_cast<int>(device) == ordinal) return result;
  }
  const auto other = static_cast<number>(ordinal);
  word context = 0;
  driver_code result =
      pass_on<function::cuDevicePrimaryCtxRetain>(reinterpret_cast<word>(&context), other);
  if (result != code::success) return result;
  result = pass_on<function::cuCtxPushCurrent_v2>(context);
  if (result == code::success) {
    result = pass_on<function::cuCtxSynchronize>();
    pass_on<function::cuCtxPopCurrent_v2>(reinterpret_cast<word>(&context));
  }
  pass_on<function::cuDevicePrimaryCtxRelease_v2>(other);
  return result;
}

}  // namespace stillmap::preload
