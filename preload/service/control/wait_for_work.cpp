#include "preload/service/control/wait_for_work.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "preload/service/memory/contexts.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/serve.h"
#include "stillmap/vmm/base/cuda_errors.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::preload {
namespace {

// A context that was destroyed by a call that no wrapper has seen has no work. Source: cuda.h.
constexpr driver_code invalid_context = 201, context_is_destroyed = 709;

// Between the request and the thread that waits for it, which may outlive it.
struct waiting {
  stillmap::mutex mutex;
  std::condition_variable_any changed;
  bool ended STILLMAP_GUARDED_BY(mutex) = false;
  driver_code result STILLMAP_GUARDED_BY(mutex) = code::success;
  // The program has gone on, and may capture a graph, which a further wait would invalidate.
  std::atomic<bool> abandoned{false};
};

driver_code synchronize(word context, const waiting &w) noexcept {
  driver_code result = pass_on<function::cuCtxPushCurrent_v2>(context);
  if (result == code::success) {
    result = w.abandoned.load() ? code::success : pass_on<function::cuCtxSynchronize>();
    word popped = 0;
    pass_on<function::cuCtxPopCurrent_v2>(reinterpret_cast<word>(&popped));
  }
  const bool gone = result == invalid_context || result == context_is_destroyed;
  // Later the program may have another context with this handle.
  if (gone && !w.abandoned.load()) contexts::forget(context);
  return gone ? code::success : result;
}

driver_code synchronize_all(word primary, const waiting &w) noexcept {
  driver_code result = synchronize(primary, w);
  contexts::each([&](word context) {
    if (result == code::success && context != primary && !w.abandoned.load())
      result = synchronize(context, w);
  });
  return result;
}

// Of a request that was late: its thread waits still.
std::shared_ptr<waiting> &last_late() {
  static std::shared_ptr<waiting> *const late = new std::shared_ptr<waiting>;
  return *late;
}

bool await(waiting &w, std::chrono::steady_clock::time_point deadline,
           const std::stop_token &stop) {
  unique_lock lock(w.mutex);
  return w.changed.wait_until(lock, stop, deadline,
                              [&]() STILLMAP_REQUIRES(w.mutex) { return w.ended; });
}

}  // namespace

work_result wait_for_queued_work(int ordinal, std::chrono::steady_clock::time_point deadline,
                                 const std::stop_token &stop) {
  caching_allocator *const heap = heaps::of_device(ordinal);
  if (heap == nullptr) return {};
  if (!contexts::all_known()) {
    return {work_outcome::failed, make_error(errc::out_of_memory,
                                             "there was no host memory to note a context of the "
                                             "program, which cannot be waited for")};
  }
  const auto not_ended = [&] {
    return work_result{stop.stop_requested() ? work_outcome::stopped : work_outcome::late};
  };
  if (last_late() && !await(*last_late(), deadline, stop)) return not_ended();
  last_late().reset();
  if (stop.stop_requested() || std::chrono::steady_clock::now() >= deadline) return not_ended();
  const auto common = std::make_shared<waiting>();
  const auto primary = reinterpret_cast<word>(heap->device().context());
  try {
    start_thread<std::thread>([common, primary] {
      const driver_code result = synchronize_all(primary, *common);
      const lock_guard lock(common->mutex);
      common->ended = true;
      common->result = result;
      common->changed.notify_all();
    }).detach();
  } catch (const std::system_error &e) {
    return {work_outcome::failed,
            make_system_error(e.code().value(), "a thread cannot be started")};
  }
  if (!await(*common, deadline, stop)) {
    common->abandoned = true;
    last_late() = common;
    return not_ended();
  }
  const lock_guard lock(common->mutex);
  if (common->result == code::success) return {};
  return {work_outcome::failed,
          tl::unexpected(error{.code = {common->result, cuda_category()},
                               .operation = "cuCtxSynchronize",
                               .reason = "waiting for the program's work has failed"})};
}

}  // namespace stillmap::preload
