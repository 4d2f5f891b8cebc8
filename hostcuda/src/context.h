// Contexts: one primary per device, any number of created ones, a stack of them per thread.
// Owned by the memory side; the execution side attaches its streams to them.
//
// A context object is never deleted, only deactivated: a stale handle in some thread's stack or in
// a queued operation stays safe to look at, as a stale handle is on a real driver.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
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

constexpr std::size_t kLimits = 8;

// What the memory side keeps per context and the execution side does not need.
struct context_state {
  context ctx;
  std::mutex life;        // one thread at a time revives a primary context
  unsigned retained = 0;  // of a primary context; guarded by context_table::mutex
  std::set<context *> peers;
  // Values of CUlimit in its order, as a fresh context of a large GPU answers them.
  std::size_t limits[kLimits] = {1024, std::size_t{1} << 20, std::size_t{8} << 20, 2, 2048, 64, 0,
                                 0};
};

// All contexts of the process.
struct context_table {
  std::mutex mutex;
  std::map<context *, std::unique_ptr<context_state>> known;  // dead ones too: never freed
  std::map<CUdevice, context *> primary;
  std::map<CUdevice, unsigned> primary_flags;
  unsigned long long next_id = 1;
};
context_table &all_contexts();

// The calling thread's stack of contexts; empty after a reset.
std::vector<context *> &context_stack();

// Enters a context that is not alive yet.
context *make_context(CUdevice device, unsigned flags, bool primary);

context_state *state_of(context *ctx);

// Whether a context of device `from` has enabled access to a context of `owner`.
bool peer_enabled(CUdevice from, CUdevice owner);

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
// Part of it: forgets the primary contexts and every thread's stack.
void forget_primary_contexts();

}  // namespace hostcuda
