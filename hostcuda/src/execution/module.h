// Modules: kernel names from PTX text, and the host functions registered under these names.
#pragma once

#include <hostcuda/hostcuda.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hostcuda/src/context.h"

namespace hostcuda {

// Immutable. Registering the same name again creates a new object.
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

// Returns nullptr for an unknown or dead handle.
std::shared_ptr<function> find_function(CUfunction handle);

// Unloads the modules of `ctx`; of all contexts if it is nullptr.
void forget_modules(context *ctx);

// Returns the names of the `.entry` directives in PTX text. Skips comments.
std::vector<std::string> ptx_entries(std::string_view text);

}  // namespace hostcuda
