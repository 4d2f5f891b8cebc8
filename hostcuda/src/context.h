// Contexts: one primary context per device, created contexts, and the context stack of each thread.
// The execution side attaches its streams to `context::exec`.
//
// A context object is deactivated but never deleted, so that a stale handle in a thread's stack or
// in a queued operation can be checked safely.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace hostcuda {

struct green_context;  // green_context.h
struct execution;      // streams, events, schedule and oracle of one context: execution.h

struct context {
  CUdevice device = 0;
  std::atomic<unsigned> flags{0};
  bool primary = false;
  unsigned long long id = 0;
  unsigned api_version = 0;
  std::atomic<std::uint64_t> lives{0};         // how often it has been activated
  std::atomic<bool> alive{false};              // retaining a primary context activates it again
  std::atomic<CUresult> sticky{CUDA_SUCCESS};  // error of a broken context; permanent
  std::unique_ptr<execution, void (*)(execution *)> exec{nullptr, nullptr};
};

constexpr std::size_t kLimits = 8;

// State of a context that the execution side does not need.
struct context_state {
  context ctx;
  std::mutex life;        // primary context only: held while it is activated or destroyed
  unsigned retained = 0;  // primary context only; guarded by `life`
  unsigned attached = 0;  // uses besides that of cuCtxCreate; guarded by context_table::mutex
  std::set<context *> peers;
  // Default values of CUlimit, in the order of the enumeration, as on a large GPU.
  std::size_t limits[kLimits] = {1024, std::size_t{1} << 20, std::size_t{8} << 20, 2, 2048, 64, 0,
                                 0};
};

// All contexts of the process.
struct context_table {
  std::mutex mutex;
  std::map<context *, std::unique_ptr<context_state>> known;  // includes dead contexts; never freed
  std::map<CUdevice, context *> primary;
  std::map<CUdevice, unsigned> primary_flags;
  unsigned long long next_id = 1;
};
context_table &all_contexts();

// What is current to a thread: a context or, with `green`, a green context of the primary one.
struct current_entry {
  context *ctx = nullptr;
  green_context *green = nullptr;
};

// The calling thread's stack of contexts; empty after a reset.
std::vector<current_entry> &context_stack();

// Registers a new context that is not alive yet.
context *make_context(CUdevice device, unsigned flags, bool primary);

context_state *state_of(context *ctx);

// Whether a context of device `from` has enabled access to a context of `owner`.
bool peer_enabled(CUdevice from, CUdevice owner);

// The calling thread's current context, or nullptr. The context may be dead. Of a green context: its
// primary one.
context *current_context();
current_entry current_entry_of_thread();
// Whether it is a context, and neither it nor its green one has been destroyed.
bool is_alive(const current_entry &entry);
// Whether neither a green context nor its primary one has been destroyed.
bool is_alive(const green_context &g);

// The context of a handle; nullptr when the handle is unknown or the context is dead. Of a green
// context's handle: its primary context.
context *find_context(CUcontext handle);
// The same for a handle that becomes current. `ctx` is nullptr in the cases above.
current_entry find_entry(CUcontext handle);
CUcontext handle_of(context *ctx);
CUcontext handle_of(const current_entry &entry);

// Activates the primary context of a valid device if need be, and counts a use of it.
context *retain_primary(CUdevice device);
// Takes one use away. Errors: INVALID_CONTEXT.
CUresult release_primary(CUdevice device);

// Makes every later call in `ctx` return `code`. The first code is kept.
void break_context(context *ctx, CUresult code);

// All live contexts, in the order of their creation.
std::vector<context *> live_contexts();

// Destroys all contexts, including the primary ones. hostcuda_reset() calls it after
// reset_execution().
void reset_contexts();
// Removes the primary contexts and clears the context stack of each thread. reset_contexts() calls
// it.
void forget_primary_contexts();

}  // namespace hostcuda
