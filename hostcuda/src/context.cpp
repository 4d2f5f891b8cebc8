#include "hostcuda/src/context.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "hostcuda/src/green_context.h"
#include "hostcuda/src/thread_owned.h"

namespace hostcuda {
namespace {

// A reset increments it to invalidate the context stacks of all threads.
std::atomic<std::uint64_t> epoch{1};

struct thread_stack {
  std::uint64_t epoch = 0;
  std::vector<current_entry> contexts;
};

}  // namespace

context_table &all_contexts() {
  static context_table *const b = new context_table;
  return *b;
}

std::vector<current_entry> &context_stack() {
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

current_entry current_entry_of_thread() {
  const auto &contexts = context_stack();
  return contexts.empty() ? current_entry{} : contexts.back();
}

context *current_context() {
  return current_entry_of_thread().ctx;
}

bool is_alive(const green_context &g) {
  return g.alive && g.primary->alive && g.life == g.primary->lives;
}

bool is_alive(const current_entry &entry) {
  return entry.ctx != nullptr && entry.ctx->alive &&
         (entry.green == nullptr || is_alive(*entry.green));
}

current_entry find_entry(CUcontext handle) {
  auto *ctx = reinterpret_cast<context *>(handle);
  {
    std::lock_guard<std::mutex> lock(all_contexts().mutex);
    if (all_contexts().known.count(ctx) != 0) return {ctx->alive ? ctx : nullptr, nullptr};
  }
  green_context *const g = find_green_context(handle, true);
  return g != nullptr && is_alive(*g) ? current_entry{g->primary, g} : current_entry{};
}

context *find_context(CUcontext handle) {
  return find_entry(handle).ctx;
}

CUcontext handle_of(const current_entry &entry) {
  return entry.green != nullptr ? converted_handle(entry.green) : handle_of(entry.ctx);
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
