// Fault rules, costs and call counts of the exported functions, for control.cpp and init.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include <cuda.h>

namespace hostcuda {

// Fault rule: what to do with one of the next calls of a function.
struct call_rule {
  std::uint64_t countdown = 0;       // 0: no rule; 1: the next call
  bool stays = false;                // all later calls too
  CUresult code = CUDA_SUCCESS;      // result of the call instead of its body
  void (*before)(void *) = nullptr;  // called before the body runs
  void *user = nullptr;
};

// All exports of one function; they differ in their suffix only.
struct call_group {
  const char *name = "";  // the key in the table of groups
  std::atomic<std::uint64_t> calls{0};
  std::atomic<bool> armed{false};  // avoids the lock when there is no rule
  // Cost of a call. Written at reset only, before has_cost is set.
  std::atomic<bool> has_cost{false};
  double fixed_ns = 0;
  double ns_per_mib = 0;
  call_rule rule;  // guarded by one mutex for all groups
};

// Finds a group. nullptr as name: the group whose rule applies to every function. Returns nullptr
// for an unknown name.
call_group *find_group(const char *name);
std::vector<call_group *> all_groups();
// Calls of all functions since the reset.
std::uint64_t total_calls();

void set_rule(call_group *group, const call_rule &rule);
std::uint64_t take_fired();
std::uint64_t modelled_ns();

// Marks the process as initialised, for cuInit, and installs the fork check.
void mark_initialised();
// Loads the cost table of the configuration in the environment. The first cuInit calls it.
void prepare_first_machine();
bool in_forked_child();

}  // namespace hostcuda
