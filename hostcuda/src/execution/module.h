// Modules and libraries, their functions and kernels, and the host functions registered under the
// names of kernels.
#pragma once

#include <hostcuda/hostcuda.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hostcuda/src/context.h"
#include "hostcuda/src/execution/image.h"

namespace hostcuda {

// Immutable. Registering the same name again creates a new object.
struct host_kernel {
  hostcuda_kernel fn = nullptr;
  std::vector<std::size_t> param_bytes;
};

// Attributes that a program can set, by number. Guarded by module_registry::mu.
struct function_attributes {
  std::array<int, CU_FUNC_ATTRIBUTE_MAX> values{};
  explicit function_attributes(const kernel_resources &uses) {
    values[CU_FUNC_ATTRIBUTE_NUM_REGS] = uses.registers;
    values[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = uses.local_bytes;
    values[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] = uses.shared_bytes;
    values[CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES] = uses.constant_bytes;
    values[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 48 * 1024 - uses.shared_bytes;
    values[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
  }
};

// A kernel in one context.
struct function {
  CUfunction handle = nullptr;
  CUmodule module = nullptr;
  context *ctx = nullptr;
  std::string name;
  std::shared_ptr<const host_kernel> kernel;  // nullptr: not registered when it was looked up
  std::vector<kernel_param> params;
  std::shared_ptr<function_attributes> attributes;
};

// A variable of GPU code in one context, created when a program asks for it.
struct module_variable {
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  CUdevice device = 0;
};

struct module_data {
  context *ctx = nullptr;
  std::shared_ptr<const code_image> image;
  CUlibrary library = nullptr;  // nullptr: the program has loaded the module itself
  std::map<std::string, CUfunction, std::less<>> functions;  // returned to the program
  std::map<std::string, module_variable, std::less<>> variables;
};

// A kernel of a library, in no context.
struct library_kernel {
  CUkernel handle = nullptr;
  CUlibrary library = nullptr;
  std::string name;
  std::vector<kernel_param> params;
  kernel_resources uses;
  std::shared_ptr<const host_kernel> host;  // nullptr: that of the name
  std::map<CUdevice, std::shared_ptr<function_attributes>> attributes;
};

struct library_data {
  std::shared_ptr<const code_image> image;
  std::map<std::string, CUkernel, std::less<>> kernels;  // returned to the program
  std::map<context *, CUmodule> modules;
};

// Lock order: not nested with any other lock.
struct module_registry {
  std::mutex mu;
  std::unordered_map<CUmodule, module_data> modules;
  std::unordered_map<CUfunction, std::shared_ptr<function>> functions;
  std::unordered_map<CUlibrary, library_data> libraries;
  std::unordered_map<CUkernel, std::shared_ptr<library_kernel>> kernels;
  std::map<std::string, std::shared_ptr<const host_kernel>, std::less<>> host_kernels;
  std::set<std::string, std::less<>> complained;
  std::uint64_t next_id = 1;  // handles are never reused

  // As new_handle() of the engine, with another counter, so that its lock is not needed here.
  template <class Handle>
  Handle new_module_handle(std::uint64_t kind) {
    return reinterpret_cast<Handle>((std::uint64_t{0xC5} << 40) | (kind << 36) | (next_id++ << 4));
  }
};

module_registry &the_modules();

// ---- Require the lock of the registry.

CUmodule add_module(module_registry &r, module_data data);
// The function `name` of a module, created at the first call.
// Errors: NOT_FOUND if the image has no such kernel; and, unless `any`, if kernels=refuse and no
// host function is registered for it.
CUresult get_function(module_registry &r, CUmodule handle, const char *name, bool any,
                      CUfunction *out);
CUresult get_kernel(module_registry &r, CUlibrary handle, const char *name, bool any,
                    CUkernel *out);
// The module of a library in `ctx`, created at the first call; nullptr for an unknown library.
CUmodule module_of(module_registry &r, CUlibrary handle, context *ctx);
// Its variables go to `variables`, for end_variables() once the lock is released.
void unload_module(module_registry &r, CUmodule handle, std::vector<module_variable> *variables);
std::shared_ptr<function_attributes> attributes_of(library_kernel &kernel, CUdevice device);
// Whether the kernel can be launched: a host function is registered, or kernels=skip. If not,
// explains on stderr, once for each name.
bool is_launchable(module_registry &r, const std::string &name);

// ---- Take the lock.

// Returns nullptr for an unknown or dead handle. `handle` may be a CUkernel: its function in `ctx`
// (nullptr: in the current context).
std::shared_ptr<function> find_function(CUfunction handle, context *ctx = nullptr);

// The host function to run for a launch of `f`; nullptr if none is registered.
std::shared_ptr<const host_kernel> host_kernel_of(const function &f);

// Releases the memory of variables.
void end_variables(const std::vector<module_variable> &variables);

// The address and size of a variable in the current context; each may be nullptr.
// Errors: INVALID_HANDLE, NOT_FOUND, OUT_OF_MEMORY.
CUresult find_variable(CUmodule handle, const char *name, CUdeviceptr *at, std::size_t *bytes);

// Unloads the modules of `ctx`; if it is nullptr, those of all contexts, and all libraries.
void forget_modules(context *ctx);

// ---- Attributes and parameters (function_entries.cpp). The attributes take the lock.

CUresult get_attribute(int *out, int what, const function_attributes &from);
CUresult set_attribute(int what, int value, function_attributes *to);
CUresult param_info(const std::vector<kernel_param> &params, std::size_t index, std::size_t *offset,
                    std::size_t *bytes);
}  // namespace hostcuda
