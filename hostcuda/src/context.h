// Contexts: one primary per device, any number of created ones, a stack of them per thread.
// Owned by the memory side; the execution side attaches its streams to them.
//
// A context object is never deleted, only deactivated: a stale handle in some thread's stack or in
// a queued operation stays safe to look at, as a stale handle is on a real driver.
#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>
#include <vector>

namespace hostcuda {

struct execution;  // streams, events, schedule and oracle of one context: execution.h

struct context {
  CUdevice device = 0;
  std::atomic<unsigned> flags{0};
  bool primary = false;
  unsigned long long id = 0;
  unsigned api_version = 0;
  std::atomic<bool> alive{false};              // a primary one comes back to life when retained
  std::atomic<CUresult> sticky{CUDA_SUCCESS};  // once broken, broken for good
  std::unique_ptr<execution, void (*)(execution *)> exec{nullptr, nullptr};
};

// The calling thread's current context, or nullptr. It may be one that is no longer alive.
context *current_context();

// The context behind a handle of ours, or nullptr for a foreign or dead one.
context *find_context(CUcontext handle);
CUcontext handle_of(context *ctx);

// Makes `ctx` answer every later call with `code`. The first code wins.
void break_context(context *ctx, CUresult code);

// Every context alive now, in the order of their creation.
std::vector<context *> live_contexts();

// Destroys every context and forgets the primary ones: hostcuda_reset, after reset_execution().
void reset_contexts();

}  // namespace hostcuda
