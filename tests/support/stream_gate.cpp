#include "tests/support/stream_gate.h"

#include <cuda.h>

#include <chrono>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "stillmap/vmm/base/cuda_errors.h"
#include "stillmap/vmm/context.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {
namespace {

template <class T>
T must(result<T> r) {
  if (!r) throw std::runtime_error(r.error().message());
  return *r;
}

void wait_on_host(void *gate) {
  while (__atomic_load_n(static_cast<std::uint32_t *>(gate), __ATOMIC_ACQUIRE) == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// Closed at 0, opened with 1. A gate is used again long after it was opened, and their memory
// stays: giving it back would wait for streams that are still held.
class gates {
 public:
  static gates &all() {
    static gates &made = *new gates;  // its thread does not end
    return made;
  }

  void close(stream_handle s) {
    const std::lock_guard lock(mutex_);
    std::uint32_t *const gate = &words_[next_++ % most];
    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    const context_guard guard(drv_, context_);
    const auto wait =
        reinterpret_cast<decltype(&cuStreamWaitValue32)>(drv_.symbol("cuStreamWaitValue32_v2"));
    const auto call =
        reinterpret_cast<decltype(&cuLaunchHostFunc)>(drv_.symbol("cuLaunchHostFunc"));
    // Of several streams that wait by host functions one might keep the others from theirs.
    const CUresult r = wait != nullptr ? wait(s, reinterpret_cast<std::uintptr_t>(gate), 1,
                                              CU_STREAM_WAIT_VALUE_EQ)
                                       : call(s, wait_on_host, gate);
    if (r != CUDA_SUCCESS) {
      throw std::runtime_error(std::string("holding a stream: ") + describe_cuda_error(r).name);
    }
    closed_[s] = {gate, std::chrono::steady_clock::now()};
  }
  void open(stream_handle s) {
    const std::lock_guard lock(mutex_);
    const auto at = closed_.find(s);
    if (at == closed_.end()) throw std::runtime_error("a stream is let go that nobody holds");
    __atomic_store_n(at->second.gate, 1, __ATOMIC_RELEASE);
    closed_.erase(at);
  }

 private:
  static constexpr std::size_t most = 256;
  struct closed {
    std::uint32_t *gate;
    std::chrono::steady_clock::time_point since;
  };

  gates() : drv_(*must(driver::get())), context_(must(drv_.retain_primary_context(0))) {
    const context_guard guard(drv_, context_);
    words_ = static_cast<std::uint32_t *>(must(drv_.allocate_host(most * sizeof(std::uint32_t))));
    std::thread([this] { open_what_is_forgotten(); }).detach();
  }

  // A test that fails leaves its stream held, and whoever then waits for the device hangs.
  [[noreturn]] void open_what_is_forgotten() {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      const std::lock_guard lock(mutex_);
      for (const auto &[s, c] : closed_) {
        if (std::chrono::steady_clock::now() - c.since < std::chrono::seconds(10)) continue;
        __atomic_store_n(c.gate, 1, __ATOMIC_RELEASE);
      }
    }
  }

  const driver &drv_;
  const context_handle context_;
  std::mutex mutex_;
  std::uint32_t *words_ = nullptr;
  std::size_t next_ = 0;
  std::map<stream_handle, closed> closed_;
};

}  // namespace

void hold(stream_handle stream) {
  if (hostcuda_control::available()) return hostcuda_control::hold(stream);
  gates::all().close(stream);
}

void release(stream_handle stream) {
  if (hostcuda_control::available()) return hostcuda_control::release(stream);
  gates::all().open(stream);
}

}  // namespace stillmap::testing
