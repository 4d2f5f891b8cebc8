// Modules: the kernel names in PTX text, and the host functions registered for them.
#pragma once

#include <hostcuda/hostcuda.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hostcuda/src/context.h"

namespace hostcuda {

// Immutable once registered; a later registration of the name makes a new one.
struct host_kernel {
  std::string entry;
  hostcuda_kernel fn = nullptr;
  std::vector<std::size_t> param_bytes;
};

struct function {
  CUfunction handle = nullptr;
  CUmodule module = nullptr;
  context *ctx = nullptr;
  std::shared_ptr<const host_kernel> kernel;
  int max_dynamic_shared = 48 * 1024;
};

// nullptr for a foreign or dead handle.
std::shared_ptr<function> find_function(CUfunction handle);

// Unloads the modules of `ctx`; nullptr: of every context.
void forget_modules(context *ctx);

// The names behind `.entry` in PTX text, comments skipped.
std::vector<std::string> ptx_entries(std::string_view text);

}  // namespace hostcuda
