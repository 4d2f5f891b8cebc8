// Test functions of hostcuda.h: configuration, counters, fault injection. The execution side
// defines the others.
#include <hostcuda/hostcuda.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "hostcuda/src/context.h"
#include "hostcuda/src/counters.h"
#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/entry/entry_rules.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/memory_state.h"
#include "hostcuda/src/shared_machine.h"

namespace hostcuda {
namespace {

struct cost_line {
  call_group *group;
  double fixed_ns;
  double ns_per_mib;
};

// Parses a cost table: lines such as `cuMemMap 1500 0.5`; # starts a comment.
bool read_costs(const std::string &file, std::vector<cost_line> *out, std::string *reason) {
  std::ifstream in(file);
  if (!in) {
    *reason = "cannot read cost table '" + file + "'";
    return false;
  }
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    if (!(words >> name)) continue;
    cost_line c{find_group(name.c_str()), 0, 0};
    std::string rest;
    if (c.group == nullptr || !(words >> c.fixed_ns >> c.ns_per_mib) || c.fixed_ns < 0 ||
        c.ns_per_mib < 0 || (words >> rest)) {
      *reason = "cost table '" + file + "', line " + std::to_string(number) +
                ": expected 'function fixed_ns ns_per_MiB'";
      return false;
    }
    out->push_back(c);
  }
  return true;
}

void apply_costs(const std::vector<cost_line> &costs) {
  for (const cost_line &c : costs) {
    c.group->fixed_ns = c.fixed_ns;
    c.group->ns_per_mib = c.ns_per_mib;
    c.group->has_cost.store(true, std::memory_order_release);
  }
}

void zero_counters() {
  shared_counters &c = counters();
  for (auto *n : {&c.bytes_htod, &c.bytes_dtoh, &c.bytes_dtod, &c.bytes_set, &c.first_touch_ns,
                  &c.live_streams, &c.live_events, &c.violations, &c.skipped_launches})
    n->store(0);
}

// Loads the cost table of the configuration in the environment, once.
void load_environment_costs() {
  static std::once_flag once;
  std::call_once(once, [] {
    const std::string &file = current_settings().costs_file;
    if (file.empty()) return;
    std::vector<cost_line> costs;
    std::string reason;
    if (read_costs(file, &costs, &reason)) {
      apply_costs(costs);
    } else {
      std::fprintf(stderr, "hostcuda: HOSTCUDA: %s\n", reason.c_str());
    }
  });
}

}  // namespace

void prepare_first_machine() {
  load_environment_costs();
}

}  // namespace hostcuda

using namespace hostcuda;

#define HOSTCUDA_CONTROL extern "C" __attribute__((visibility("default"))) CUresult

HOSTCUDA_CONTROL hostcuda_reset(const char *config) {
  if (in_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  load_environment_costs();  // first, so that it cannot overwrite the new costs later
  settings next;
  std::string reason;
  std::vector<cost_line> costs;
  const char *text = config == nullptr || *config == '\0' ? std::getenv("HOSTCUDA") : config;
  if (!parse_settings(text, &next, &reason) ||
      (!next.costs_file.empty() && !read_costs(next.costs_file, &costs, &reason))) {
    std::fprintf(stderr, "hostcuda: hostcuda_reset: %s\n", reason.c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  reset_execution();
  reset_contexts();
  reset_memory(next);
  leave_machine();
  reset_entries();
  zero_counters();
  replace_settings(next);
  apply_costs(costs);
  return CUDA_SUCCESS;
}

HOSTCUDA_CONTROL hostcuda_config(const char **out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = current_settings().text.c_str();
  return CUDA_SUCCESS;
}

HOSTCUDA_CONTROL hostcuda_occupy(CUdevice device, size_t bytes) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return occupy(device, bytes);
}

HOSTCUDA_CONTROL hostcuda_calls(const char *name, uint64_t *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (name == nullptr) {
    *out = total_calls();
    return CUDA_SUCCESS;
  }
  const call_group *g = find_group(name);
  if (g == nullptr) return CUDA_ERROR_NOT_FOUND;
  *out = g->calls;
  return CUDA_SUCCESS;
}

HOSTCUDA_CONTROL hostcuda_get_counters(hostcuda_counters *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = hostcuda_counters{};
  const shared_counters &c = counters();
  out->calls = total_calls();
  out->bytes_htod = c.bytes_htod;
  out->bytes_dtoh = c.bytes_dtoh;
  out->bytes_dtod = c.bytes_dtod;
  out->bytes_set = c.bytes_set;
  out->live_streams = c.live_streams;
  out->live_events = c.live_events;
  out->violations = c.violations;
  out->first_touch_ns = c.first_touch_ns;
  out->skipped_launches = c.skipped_launches;
  out->live_contexts = live_contexts().size();
  memory_registry &b = the_memory();
  std::shared_lock<std::shared_mutex> lock(b.mutex);
  for (int i = 0; i < kMaxDevices; ++i) out->physical_bytes += b.used[i];
  out->physical_peak = b.peak;
  out->live_handles = b.vmm_allocations;
  out->live_mappings = b.mappings.size();
  out->live_reservations = b.reservations.size();
  out->live_host_ranges = b.host.size();
  return CUDA_SUCCESS;
}

HOSTCUDA_CONTROL hostcuda_modelled_ns(uint64_t *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = modelled_ns();
  return CUDA_SUCCESS;
}

HOSTCUDA_CONTROL hostcuda_each_call(void (*cb)(const char *, uint64_t, void *), void *user) {
  if (cb == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const call_group *g : all_groups())
    if (const uint64_t n = g->calls; n != 0) cb(g->name, n, user);
  return CUDA_SUCCESS;
}

HOSTCUDA_CONTROL hostcuda_fail(const char *name, uint64_t n, CUresult code) {
  call_group *g = find_group(name);
  if (g == nullptr) return CUDA_ERROR_NOT_FOUND;
  set_rule(g, {n, false, code});
  return CUDA_SUCCESS;
}

HOSTCUDA_CONTROL hostcuda_fail_from(const char *name, uint64_t n, CUresult code) {
  call_group *g = find_group(name);
  if (g == nullptr) return CUDA_ERROR_NOT_FOUND;
  set_rule(g, {n, true, code});
  return CUDA_SUCCESS;
}

HOSTCUDA_CONTROL hostcuda_before(const char *name, uint64_t n, void (*cb)(void *), void *user) {
  call_group *g = find_group(name);
  if (g == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (cb == nullptr) return CUDA_ERROR_INVALID_VALUE;
  set_rule(g, {n, false, CUDA_SUCCESS, cb, user});
  return CUDA_SUCCESS;
}

HOSTCUDA_CONTROL hostcuda_faults_fired(uint64_t *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = take_fired();
  return CUDA_SUCCESS;
}
