// What the control functions set on the entries: fault rules, costs, and the counts they read.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <cuda.h>

namespace hostcuda {

// What happens to one of the next calls.
struct call_rule {
  std::uint64_t countdown = 0;       // 0: there is no rule; 1: the very next call
  bool stays = false;                // and all later ones
  CUresult code = CUDA_SUCCESS;      // what the call returns instead of doing anything
  void (*before)(void *) = nullptr;  // is called before the call goes in
  void *user = nullptr;
};

// All exports of one function, whatever their suffix.
struct call_group {
  std::string name;
  std::atomic<std::uint64_t> calls{0};
  // Cost of a call: written before has_cost is set, at reset only.
  std::atomic<bool> has_cost{false};
  double fixed_ns = 0;
  double ns_per_mib = 0;
  // Guarded by one mutex; `armed` lets the common case look without it.
  std::atomic<bool> armed{false};
  call_rule rule;
};

// nullptr names the rule that stands for every function; an unknown name gives nullptr.
call_group *find_group(const char *name);
std::vector<call_group *> all_groups();

void set_rule(call_group *group, const call_rule &rule);
std::uint64_t take_fired();
std::uint64_t modelled_ns();

// What cuInit does; installs the fork check.
void mark_initialised();
// The cost table named in the environment; the first cuInit reads it.
void prepare_first_machine();
bool in_forked_child();

}  // namespace hostcuda
