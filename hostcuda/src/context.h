// Contexts: one primary per device, any number of created ones, a stack of them per thread.
// Owned by the memory side; the execution side attaches its streams to them.
#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>

namespace hostcuda {

struct execution;  // streams, events, schedule and oracle of one context: execution.h

struct context {
  CUdevice device = 0;
  unsigned flags = 0;
  bool primary = false;
  unsigned long long id = 0;
  std::atomic<CUresult> sticky{CUDA_SUCCESS};  // once broken, broken for good
  std::unique_ptr<execution, void (*)(execution *)> exec{nullptr, nullptr};
};

// The calling thread's current context, or nullptr.
context *current_context();

// The context behind a handle of ours, or nullptr for a foreign or dead one.
context *find_context(CUcontext handle);
CUcontext handle_of(context *ctx);

// Makes `ctx` answer every later call with `code`. The first code wins.
void break_context(context *ctx, CUresult code);

}  // namespace hostcuda
