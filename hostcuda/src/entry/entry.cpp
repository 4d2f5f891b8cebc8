// Implements entry.h: call counts, costs, fault rules and symbol lookup.
#include "hostcuda/src/entry/entry.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "hostcuda/src/context.h"
#include "hostcuda/src/counters.h"
#include "hostcuda/src/entry/entry_rules.h"
#include "hostcuda/src/machine.h"

namespace hostcuda {

struct entry_point {
  const char *symbol;
  int since;
  void *address;
  bool per_thread;
  call_group *group;
};

namespace {

struct registry {
  std::vector<entry_point *> entries;          // filled at load time, then read-only
  std::map<std::string, call_group *> groups;  // filled at load time, then read-only
};

// Never destroyed, because destructors of the program may call the driver.
registry &all() {
  static registry *const r = new registry;
  return *r;
}

std::mutex &rule_mutex() {
  static std::mutex *const m = new std::mutex;
  return *m;
}

constinit call_group any_function;  // its rule applies to every function

std::atomic<bool> initialised{false};
std::atomic<bool> forked{false};
std::atomic<std::uint64_t> modelled{0};
std::atomic<std::uint64_t> fired{0};

bool is_per_thread(std::string_view symbol) {
  return symbol.ends_with("_ptsz") || symbol.ends_with("_ptds");
}

// Not inlined, like all that few calls need: enter() would save more registers for it.
[[gnu::noinline]] CUresult apply_rule(call_group &g) {
  std::unique_lock<std::mutex> lock(rule_mutex());
  if (g.rule.countdown == 0) return CUDA_SUCCESS;
  if (g.rule.countdown > 1) {
    --g.rule.countdown;
    return CUDA_SUCCESS;
  }
  const call_rule now = g.rule;
  if (!now.stays) {
    g.rule = {};
    g.armed = false;
  }
  ++fired;
  lock.unlock();  // the callback may call the driver
  if (now.before != nullptr) now.before(now.user);
  return now.code;
}

// Applies the group's rule to one call. Returns CUDA_SUCCESS if no fault is injected.
CUresult consult(call_group &g) {
  return g.armed.load(std::memory_order_relaxed) ? apply_rule(g) : CUDA_SUCCESS;
}

void model_cost(const call_group &g, std::size_t bytes) {
  if (!g.has_cost.load(std::memory_order_acquire)) return;
  const double ns = g.fixed_ns + g.ns_per_mib * (static_cast<double>(bytes) / (1024.0 * 1024.0));
  modelled += static_cast<std::uint64_t>(ns);
}

[[gnu::noinline]] CUresult too_old_for(const call_group &g) {
  return std::string_view(g.name) == "cuGetProcAddress" ? CUDA_ERROR_NOT_FOUND
                                                        : CUDA_ERROR_NOT_SUPPORTED;
}

void in_child() {
  if (initialised.load()) forked = true;
}

}  // namespace

std::string base_name(const char *symbol) {
  std::string s(symbol);
  if (is_per_thread(s)) s.resize(s.size() - 5);
  for (const char *suffix : {"_v2", "_v3", "_v4"})
    if (s.ends_with(suffix)) {
      s.resize(s.size() - 3);
      break;
    }
  return s;
}

entry_point *register_entry(const char *symbol, int since_version, void *address) {
  registry &r = all();
  const std::string base = base_name(symbol);
  const auto [it, is_new] = r.groups.try_emplace(base, nullptr);
  call_group *&group = it->second;
  if (is_new) {
    group = new call_group;
    group->name = it->first.c_str();
  }
  auto *e = new entry_point{symbol, since_version, address, is_per_thread(symbol), group};
  r.entries.push_back(e);
  return e;
}

bool driver_initialised() {
  return initialised.load(std::memory_order_acquire) && !forked;
}

bool in_forked_child() {
  return forked;
}

void mark_initialised() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, in_child); });
  initialised.store(true, std::memory_order_release);
}

CUresult enter(entry_point *entry, unsigned flags, std::size_t bytes) {
  if (forked.load(std::memory_order_relaxed) && (flags & never_fails) == 0)
    return CUDA_ERROR_NOT_INITIALIZED;
  if ((flags & before_init) == 0 && !initialised.load(std::memory_order_acquire))
    return CUDA_ERROR_NOT_INITIALIZED;
  call_group &g = *entry->group;
  const profile &machine = current_settings().machine;
  if (entry->since > machine.driver_version) return too_old_for(g);
  g.calls.fetch_add(1, std::memory_order_relaxed);
  model_cost(g, bytes);
  if ((flags & never_fails) == 0) {
    if (CUresult r = consult(g); r != CUDA_SUCCESS) return r;
    if (CUresult r = consult(any_function); r != CUDA_SUCCESS) return r;
  }
  if ((flags & before_init) == 0) {
    const current_entry now = current_entry_of_thread();
    if ((flags & needs_context) != 0) {
      if (now.ctx == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
      if (!is_alive(now)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (now.ctx != nullptr && (flags & ignores_sticky) == 0)
      if (CUresult r = now.ctx->sticky.load(); r != CUDA_SUCCESS) return r;
  }
  const bool lacking = ((flags & needs_vmm) != 0 && !machine.has_vmm) ||
                       ((flags & needs_pools) != 0 && !machine.has_pools);
  return lacking ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult call_not_provided(entry_point *entry) {
  const CUresult r = enter(entry, before_init | ignores_sticky, 0);
  return r == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : r;
}

void *find_entry(const char *name, int version, bool per_thread_stream, int *status) {
  const entry_point *best = nullptr;
  bool known = false;
  for (const entry_point *e : all().entries) {
    if (std::strcmp(e->group->name, name) != 0) continue;
    known = true;
    if (e->since > version || (e->per_thread && !per_thread_stream)) continue;
    // Prefers the newest signature; for one signature, the per-thread variant if requested.
    const auto rank = [](const entry_point *x) {
      const char *suffix = std::strstr(x->symbol, "_v");
      return (suffix != nullptr ? 2 * (suffix[2] - '0') : 0) + (x->per_thread ? 1 : 0);
    };
    if (best == nullptr || rank(e) > rank(best)) best = e;
  }
  // CU_GET_PROC_ADDRESS_{SUCCESS, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT}
  *status = best != nullptr ? 0 : known ? 2 : 1;
  return best != nullptr ? best->address : nullptr;
}

call_group *find_group(const char *name) {
  if (name == nullptr) return &any_function;
  const auto it = all().groups.find(base_name(name));
  return it == all().groups.end() ? nullptr : it->second;
}

std::vector<call_group *> all_groups() {
  std::vector<call_group *> out;
  for (const auto &[name, group] : all().groups) out.push_back(group);
  return out;
}

std::uint64_t total_calls() {
  std::uint64_t sum = 0;
  for (const auto &[name, group] : all().groups)
    sum += group->calls.load(std::memory_order_relaxed);
  return sum;
}

void set_rule(call_group *group, const call_rule &rule) {
  std::lock_guard<std::mutex> lock(rule_mutex());
  group->rule = rule;
  group->armed = rule.countdown != 0;
}

std::uint64_t take_fired() {
  return fired.exchange(0);
}

std::uint64_t modelled_ns() {
  return modelled;
}

void reset_entries() {
  for (call_group *g : all_groups()) {
    g->calls = 0;
    g->has_cost = false;
    set_rule(g, {});
  }
  set_rule(&any_function, {});
  modelled = 0;
  fired = 0;
  initialised = false;
}

shared_counters &counters() {
  static shared_counters *const c = new shared_counters;
  return *c;
}

}  // namespace hostcuda
