// Captures a stream into a graph, with the driver that the test runs on.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include "stillmap/vmm/context.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::testing {

class captured_graph {
 public:
  // Begins at once, on this thread.
  captured_graph(const device &d, stream_ref s,
                 CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL)
      : device_(d), origin_(s) {
    EXPECT_EQ((call<CUstream, CUstreamCaptureMode>("cuStreamBeginCapture_v2", s.get(), mode)),
              CUDA_SUCCESS);
  }
  captured_graph(const captured_graph &) = delete;
  ~captured_graph() {
    if (!ended_) end();
    if (replay_ != nullptr) {
      EXPECT_EQ(call<CUgraphExec>("cuGraphExecDestroy", replay_), CUDA_SUCCESS);
    }
  }

  // `other` takes part, or has done its part.
  void fork(stream_ref other) { after(origin_, other); }
  void join(stream_ref other) { after(other, origin_); }

  // What is queued while it captures.
  void fill(void *at, unsigned char value, std::size_t bytes, stream_ref s) {
    const context_guard guard(device_.driver(), device_.context());
    must(device_.driver().set_bytes_async(address(at), value, bytes, s.get()));
  }
  void copy(void *to, void *from, std::size_t bytes, stream_ref s) {
    const context_guard guard(device_.driver(), device_.context());
    must(device_.driver().copy_on_device_async(address(to), address(from), bytes, s.get()));
  }

  // Ends it. False: something spoiled it.
  bool end() {
    ended_ = true;
    CUgraph graph = nullptr;
    const CUresult r = call<CUstream, CUgraph *>("cuStreamEndCapture", origin_.get(), &graph);
    if (r != CUDA_SUCCESS) {
      ADD_FAILURE() << "the capture ends with " << r;
      return false;
    }
    const CUresult made = device_.driver().version() >= 11040
                              ? call<CUgraphExec *, CUgraph, unsigned long long>(
                                    "cuGraphInstantiateWithFlags", &replay_, graph, 0)
                              : call<CUgraphExec *, CUgraph, CUgraphNode *, char *, std::size_t>(
                                    "cuGraphInstantiate_v2", &replay_, graph, nullptr, nullptr, 0);
    EXPECT_EQ(made, CUDA_SUCCESS);
    EXPECT_EQ(call<CUgraph>("cuGraphDestroy", graph), CUDA_SUCCESS);
    return true;
  }

  void launch(stream_ref on) {
    EXPECT_EQ((call<CUgraphExec, CUstream>("cuGraphLaunch", replay_, on.get())), CUDA_SUCCESS);
  }

 private:
  template <class... A>
  CUresult call(const char *name, A... arguments) {
    const auto function = reinterpret_cast<CUresult (*)(A...)>(device_.driver().symbol(name));
    if (function == nullptr) return CUDA_ERROR_NOT_FOUND;
    const context_guard guard(device_.driver(), device_.context());
    return function(arguments...);
  }
  static device_address address(void *at) {
    return device_address(reinterpret_cast<std::uintptr_t>(at));
  }
  static void must(const status &s) { EXPECT_TRUE(s) << s.error().message(); }
  void after(stream_ref first, stream_ref then) {
    const context_guard guard(device_.driver(), device_.context());
    const auto e = device_.driver().create_event();
    ASSERT_TRUE(e) << e.error().message();
    must(device_.driver().record_event(*e, first.get()));
    must(device_.driver().stream_wait(then.get(), *e));
    must(device_.driver().destroy_event(*e));
  }

  device device_;
  stream_ref origin_;
  CUgraphExec replay_ = nullptr;
  bool ended_ = false;
};

}  // namespace stillmap::testing
