// What a program may do meanwhile that a request of its operator must live with: further commands of `operated`.
// Each returns the line that answers it.
#pragma once

#include <link.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <sstream>

#include "tests/preload/clients/semantics.h"

namespace client {

// Whether code of Stillmap's service has called, not what it calls, as the driver.
inline bool is_of_service(const void *caller) {
  struct range {
    std::uintptr_t begin = 0, end = 0;
  };
  static const range service = [] {
    range found;
    ::dl_iterate_phdr(
        [](dl_phdr_info *object, std::size_t, void *to) {
          if (std::strstr(object->dlpi_name, "libstillmap_preload_service") == nullptr) return 0;
          for (int i = 0; i < object->dlpi_phnum; ++i) {
            const auto &h = object->dlpi_phdr[i];
            if (h.p_type != PT_LOAD || (h.p_flags & PF_X) == 0) continue;
            const std::uintptr_t begin = object->dlpi_addr + h.p_vaddr;
            *static_cast<range *>(to) = {begin, begin + h.p_memsz};
          }
          return 1;
        },
        &found);
    return found;
  }();
  const auto at = reinterpret_cast<std::uintptr_t>(caller);
  return at >= service.begin && at < service.end;
}

// On a thread of Stillmap, which blocks all signals that are sent to the process.
inline bool on_thread_of_stillmap() {
  thread_local const bool blocked = [] {
    sigset_t mask;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    return ::sigismember(&mask, SIGUSR1) == 1;
  }();
  return blocked;
}

// What the program's own operator new does there.
inline std::atomic<std::int64_t> failing_new{0};  // the n-th from now on fails; 0 or less: none
inline std::atomic<bool> new_calls_driver{false};

inline void *allocate(std::size_t bytes, const void *caller) {
  if ((new_calls_driver || failing_new > 0) && on_thread_of_stillmap() && is_of_service(caller)) {
    if (new_calls_driver) cuCtxSynchronize();
    if (failing_new > 0 && --failing_new == 0) throw std::bad_alloc();
  }
  if (void *const at = std::malloc(bytes != 0 ? bytes : 1)) return at;
  throw std::bad_alloc();
}

using command = std::function<std::string(std::istringstream &)>;

inline std::string said(CUresult r) {
  return r == CUDA_SUCCESS ? "ok" : std::to_string(static_cast<int>(r));
}

class trouble {
 public:
  trouble(CUcontext usual, CUdeviceptr memory) : usual_(usual), memory_(memory) {}
  ~trouble() {
    for (const char *const end : {"end_load", "end_ask"}) {
      std::istringstream none;
      commands().at(end)(none);
    }
  }
  trouble(const trouble &) = delete;

  const std::map<std::string, command> &commands() { return commands_; }

 private:
  // The default stream of this thread, which has two handles.
  std::string capture_thread_stream() {
    CUgraph graph = nullptr;
    CUresult r = hostcuda<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2_ptsz")(
        nullptr, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (r == CUDA_SUCCESS) r = cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph);
    return said(r);
  }
  // A graph that is captured in a context of its own, which the end of its context, or of its stream, ends.
  std::string capture_and_end(const std::string &how) {
    if (how == "thread") return capture_thread_stream();
    CUcontext context = nullptr;
    CUstream s = nullptr;
    CUresult r = create_context(&context);
    if (r == CUDA_SUCCESS) r = cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS) r = cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (r == CUDA_SUCCESS && how == "stream") r = cuStreamDestroy(s);
    if (r == CUDA_SUCCESS)
      r = how == "detach" ? hostcuda<CUresult(CUcontext)>("cuCtxDetach")(context)
                          : cuCtxDestroy(context);
    cuCtxSetCurrent(usual_);
    return said(r);
  }

  std::string create_and_destroy(std::size_t count) {
    std::vector<CUcontext> all(count);
    for (CUcontext &context : all) {
      if (const CUresult r = create_context(&context)) return said(r);
    }
    for (const CUcontext context : all) {
      if (const CUresult r = cuCtxDestroy(context)) return said(r);
    }
    return said(cuCtxSetCurrent(usual_));
  }

  // Handles of no context.
  std::string set_refused(std::size_t count) {
    std::vector<char> none(count);
    for (char &c : none) {
      if (cuCtxSetCurrent(reinterpret_cast<CUcontext>(&c)) == CUDA_SUCCESS) return "accepted";
    }
    return said(cuCtxSetCurrent(usual_));
  }

  std::string load_again_and_again(const std::string &library) {
    leave_ = false;
    loading_ = std::thread([this, library] {
      while (!leave_) {
        void *const loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (loaded == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
        if (loaded == nullptr || ::dlclose(loaded) != 0) {
          leave_ = true;
          return;
        }
        ++loads_;
      }
    });
    while (loads_ == 0 && !leave_) pause(1);
    return leave_ ? "not loaded" : "ok";
  }

  void ask_for_attribute() {
    answer_ = "waits";
    asking_ = std::thread([this] {
      cuCtxSetCurrent(usual_);
      CUmemorytype type{};
      const CUresult r = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory_);
      CUmemorytype listed{};
      CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
      void *to = &listed;
      const CUresult many = cuPointerGetAttributes(1, &attribute, &to, memory_);
      const bool right = r == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE &&
                         many == CUDA_SUCCESS && listed == CU_MEMORYTYPE_DEVICE;
      answer_ = right ? "right" : "wrong";
    });
  }

  // In a stream of the context that `context` has created.
  std::string capture_there() {
    cuCtxSetCurrent(other_);
    captured_ = new_stream();
    const CUresult r = cuStreamBeginCapture(captured_, CU_STREAM_CAPTURE_MODE_RELAXED);
    cuCtxSetCurrent(usual_);
    return said(r);
  }
  std::string end_capture_there() {
    CUgraph graph = nullptr;
    return said(cuStreamEndCapture(captured_, &graph));
  }

  // All of the device's primary context, behind which the program begins anew.
  std::string reset() {
    if (const CUresult r = cuDevicePrimaryCtxReset(0)) return said(r);
    CUcontext context = nullptr;
    if (const CUresult r = cuDevicePrimaryCtxRetain(&context, 0)) return said(r);
    if (const CUresult r = cuCtxSetCurrent(context)) return said(r);
    const CUdeviceptr block = block_of(3 << 20);
    if (block == 0) return "no memory";
    if (const CUresult r = cuMemsetD8(block, 3, 3 << 20)) return said(r);
    return holds(block, 3 << 20, 3) ? "ok" : "wrong";
  }

  static std::size_t count_of(std::istringstream &words) {
    std::size_t count = 0;
    words >> count;
    return count;
  }
  static std::string word_of(std::istringstream &words) {
    std::string word;
    words >> word;
    return word;
  }

  const CUcontext usual_;
  const CUdeviceptr memory_;
  CUcontext other_ = nullptr;
  CUstream captured_ = nullptr;
  std::atomic<bool> leave_{false};
  std::atomic<std::uint64_t> loads_{0};
  std::atomic<const char *> answer_{""};
  std::thread loading_, asking_;
  const std::map<std::string, command> commands_{
      {"fail_new",
       [](auto &words) {
         failing_new = static_cast<std::int64_t>(count_of(words));
         return "ok";
       }},
      {"new_failed", [](auto &) { return failing_new.exchange(0) <= 0 ? "1" : "0"; }},
      {"new_calls_driver",
       [](auto &) {
         new_calls_driver = true;
         return "ok";
       }},
      {"load", [this](auto &words) { return load_again_and_again(word_of(words)); }},
      {"end_load",
       [this](auto &) {
         leave_ = true;
         if (loading_.joinable()) loading_.join();
         return std::to_string(loads_);
       }},
      {"capture_and_end", [this](auto &words) { return capture_and_end(word_of(words)); }},
      {"contexts", [this](auto &words) { return create_and_destroy(count_of(words)); }},
      {"refused_contexts", [this](auto &words) { return set_refused(count_of(words)); }},
      {"ask",
       [this](auto &) {
         ask_for_attribute();
         return "ok";
       }},
      {"asked", [this](auto &) { return answer_.load(); }},
      {"end_ask",
       [this](auto &) {
         if (asking_.joinable()) asking_.join();
         return answer_.load();
       }},
      {"context",
       [this](auto &) {
         const CUresult r = create_context(&other_);
         cuCtxSetCurrent(usual_);
         return said(r);
       }},
      {"capture_there", [this](auto &) { return capture_there(); }},
      {"end_capture_there", [this](auto &) { return end_capture_there(); }},
      {"reset", [this](auto &) { return reset(); }},
  };
};

}  // namespace client
