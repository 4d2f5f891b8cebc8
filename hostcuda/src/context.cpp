#include "hostcuda/src/context.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "hostcuda/src/thread_owned.h"

namespace hostcuda {
namespace {

// A reset increments it to invalidate the context stacks of all threads.
std::atomic<std::uint64_t> epoch{1};

struct thread_stack {
  std::uint64_t epoch = 0;
  std::vector<context *> contexts;
};

}  // namespace

context_table &all_contexts() {
  static context_table *const b = new context_table;
  return *b;
}

std::vector<context *> &context_stack() {
  auto &s = thread_owned<thread_stack>();
  if (s.epoch != epoch) {
    s.contexts.clear();
    s.epoch = epoch;
  }
  return s.contexts;
}

context *make_context(CUdevice device, unsigned flags, bool primary) {
  context_table &b = all_contexts();
  auto state = std::make_unique<context_state>();
  context *ctx = &state->ctx;
  ctx->device = device;
  ctx->flags = flags;
  ctx->primary = primary;
  {
    std::lock_guard<std::mutex> lock(b.mutex);
    ctx->id = b.next_id++;
    b.known.emplace(ctx, std::move(state));
  }
  return ctx;
}

context *current_context() {
  const auto &contexts = context_stack();
  return contexts.empty() ? nullptr : contexts.back();
}

context *find_context(CUcontext handle) {
  auto *ctx = reinterpret_cast<context *>(handle);
  std::lock_guard<std::mutex> lock(all_contexts().mutex);
  return all_contexts().known.count(ctx) != 0 && ctx->alive ? ctx : nullptr;
}

CUcontext handle_of(context *ctx) {
  return reinterpret_cast<CUcontext>(ctx);
}

context_state *state_of(context *ctx) {
  std::lock_guard<std::mutex> lock(all_contexts().mutex);
  const auto it = all_contexts().known.find(ctx);
  return it == all_contexts().known.end() ? nullptr : it->second.get();
}

void break_context(context *ctx, CUresult code) {
  CUresult fine = CUDA_SUCCESS;
  ctx->sticky.compare_exchange_strong(fine, code);
}

std::vector<context *> live_contexts() {
  std::vector<context *> out;
  std::lock_guard<std::mutex> lock(all_contexts().mutex);
  for (const auto &[ctx, state] : all_contexts().known)
    if (ctx->alive) out.push_back(ctx);
  std::sort(out.begin(), out.end(), [](context *a, context *b) { return a->id < b->id; });
  return out;
}

bool peer_enabled(CUdevice from, CUdevice owner) {
  std::lock_guard<std::mutex> lock(all_contexts().mutex);
  for (const auto &[ctx, state] : all_contexts().known)
    if (ctx->alive && ctx->device == from)
      for (const context *peer : state->peers)
        if (peer->device == owner) return true;
  return false;
}

void forget_primary_contexts() {
  std::lock_guard<std::mutex> lock(all_contexts().mutex);
  all_contexts().primary.clear();
  all_contexts().primary_flags.clear();
  ++epoch;
}

}  // namespace hostcuda
