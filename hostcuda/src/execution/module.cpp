#include "hostcuda/src/execution/module.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/engine.h"

namespace hostcuda {
namespace {

struct module_data {
  context *ctx = nullptr;
  std::vector<std::string> entries;
  std::map<std::string, CUfunction, std::less<>> functions;  // returned to the program
};

// Lock order: not nested with any other lock.
struct module_registry {
  std::mutex mu;
  std::unordered_map<CUmodule, module_data> modules;
  std::unordered_map<CUfunction, std::shared_ptr<function>> functions;
  std::map<std::string, std::shared_ptr<const host_kernel>, std::less<>> kernels;
  std::set<std::string, std::less<>> complained;
};

module_registry &the_registry() {
  static auto *const the = new module_registry;
  return *the;
}

template <class Handle>
Handle fresh_handle(std::uint64_t kind) {
  engine_lock lock(the_engine().mu);
  return new_handle<Handle>(kind);
}

// Whether `image` is machine code: a cubin (ELF) or one of the two fat binary headers.
bool is_machine_code(const void *image) {
  static constexpr unsigned char magics[][4] = {
      {0x7F, 'E', 'L', 'F'}, {0x50, 0xED, 0x55, 0xBA}, {0xB1, 0x43, 0x62, 0x46}};
  for (const auto &magic : magics) {
    // Compare bytes, because PTX text may be shorter than four bytes.
    const auto *bytes = static_cast<const unsigned char *>(image);
    std::size_t i = 0;
    while (i < 4 && bytes[i] == magic[i]) ++i;
    if (i == 4) return true;
  }
  return false;
}

CUresult load_text(CUmodule *out, const std::string &text) {
  context *const ctx = current_context();
  if (text.find(".version") == std::string::npos) {
    const bool printable = std::all_of(text.begin(), text.end(), [](unsigned char c) {
      return std::isprint(c) != 0 || std::isspace(c) != 0;
    });
    return printable && !text.empty() ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
  }
  module_data data;
  data.ctx = ctx;
  data.entries = ptx_entries(text);
  const auto handle = fresh_handle<CUmodule>(5);
  auto &r = the_registry();
  std::lock_guard lock(r.mu);
  r.modules.emplace(handle, std::move(data));
  *out = handle;
  return CUDA_SUCCESS;
}

CUresult load_image(CUmodule *out, const void *image) {
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // hostcuda does not run GPU code.
  if (is_machine_code(image)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  return load_text(out, static_cast<const char *>(image));
}

CUresult load_file(CUmodule *out, const char *path) {
  if (out == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream in(path, std::ios::binary);
  if (!in) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.size() >= 4 && is_machine_code(text.data())) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  return load_text(out, text);
}

CUresult get_function(CUfunction *out, CUmodule handle, const char *name) {
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto spare = fresh_handle<CUfunction>(6);
  auto &r = the_registry();
  std::lock_guard lock(r.mu);
  const auto found = r.modules.find(handle);
  if (found == r.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
  auto &data = found->second;
  if (std::find(data.entries.begin(), data.entries.end(), name) == data.entries.end()) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (const auto given = data.functions.find(name); given != data.functions.end()) {
    *out = given->second;
    return CUDA_SUCCESS;
  }
  const auto kernel = r.kernels.find(name);
  if (kernel == r.kernels.end()) {
    if (r.complained.insert(name).second) {
      std::fprintf(stderr,
                   "hostcuda: kernel '%s' is in the module, but hostcuda does not run PTX; "
                   "register a host function with hostcuda_register_kernel(\"%s\", ...)\n",
                   name, name);
    }
    return CUDA_ERROR_NOT_FOUND;
  }
  auto f = std::make_shared<function>();
  f->handle = spare;
  f->module = handle;
  f->ctx = data.ctx;
  f->kernel = kernel->second;
  r.functions.emplace(spare, std::move(f));
  data.functions.emplace(name, spare);
  *out = spare;
  return CUDA_SUCCESS;
}

// Attribute values that are common for kernels of compute capability 9.0.
CUresult get_attribute(int *out, CUfunction_attribute what, CUfunction handle) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto f = find_function(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  switch (what) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *out = 1024;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *out = 32;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: {
      const auto &machine = current_settings().machine;
      *out = machine.compute_major * 10 + machine.compute_minor;
      break;
    }
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: {
      std::lock_guard lock(the_registry().mu);
      *out = f->max_dynamic_shared;
      break;
    }
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *out = -1;
      break;
    default:
      if (what < 0 || what >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
      *out = 0;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(CUfunction handle, CUfunction_attribute what, int value) {
  const auto f = find_function(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (what == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value < 0 || value > 227 * 1024) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(the_registry().mu);
    f->max_dynamic_shared = value;
    return CUDA_SUCCESS;
  }
  // The other settable attributes control caches and clusters and have no effect here.
  return what >= CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && what < CU_FUNC_ATTRIBUTE_MAX
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

std::shared_ptr<function> find_function(CUfunction handle) {
  auto &r = the_registry();
  std::lock_guard lock(r.mu);
  const auto found = r.functions.find(handle);
  return found == r.functions.end() ? nullptr : found->second;
}

void forget_modules(context *ctx) {
  auto &r = the_registry();
  std::lock_guard lock(r.mu);
  std::erase_if(r.functions, [&](const auto &f) { return ctx == nullptr || f.second->ctx == ctx; });
  std::erase_if(r.modules, [&](const auto &m) { return ctx == nullptr || m.second.ctx == ctx; });
}

}  // namespace hostcuda

using namespace hostcuda;

extern "C" __attribute__((visibility("default"))) CUresult hostcuda_register_kernel(
    const char *entry, hostcuda_kernel fn, unsigned param_count, const size_t *param_bytes) {
  if (entry == nullptr || *entry == '\0' || fn == nullptr ||
      (param_count != 0 && param_bytes == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto kernel = std::make_shared<host_kernel>();
  kernel->entry = entry;
  kernel->fn = fn;
  kernel->param_bytes.assign(param_bytes, param_bytes + param_count);
  // A device takes at most 32,764 bytes of parameters.
  std::size_t total = 0;
  for (const std::size_t bytes : kernel->param_bytes) {
    if (bytes == 0 || bytes > 32764 || (total += bytes) > 32764) return CUDA_ERROR_INVALID_VALUE;
  }
  auto &r = the_registry();
  std::lock_guard lock(r.mu);
  r.kernels[entry] = std::move(kernel);
  return CUDA_SUCCESS;
}

HOSTCUDA_ENTRY(cuModuleLoadData, 2000, needs_context, 0, (CUmodule * out, const void *image),
               { return load_image(out, image); })

HOSTCUDA_ENTRY(cuModuleLoadDataEx, 2010, needs_context, 0,
               (CUmodule * out, const void *image, unsigned count, CUjit_option *options,
                void **values),
               {
                 if (count != 0 && (options == nullptr || values == nullptr)) {
                   return CUDA_ERROR_INVALID_VALUE;
                 }
                 // The options control a JIT compiler, which hostcuda does not have.
                 return load_image(out, image);
               })

HOSTCUDA_ENTRY(cuModuleLoadFatBinary, 2000, needs_context, 0, (CUmodule * out, const void *image),
               { return load_image(out, image); })

HOSTCUDA_ENTRY(cuModuleLoad, 2000, needs_context, 0, (CUmodule * out, const char *path),
               { return load_file(out, path); })

HOSTCUDA_ENTRY(cuModuleUnload, 2000, ignores_sticky, 0, (CUmodule handle), {
  auto &r = the_registry();
  std::lock_guard lock(r.mu);
  const auto found = r.modules.find(handle);
  if (found == r.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto &entry : found->second.functions) r.functions.erase(entry.second);
  r.modules.erase(found);
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuModuleGetFunction, 2000, needs_context, 0,
               (CUfunction * out, CUmodule handle, const char *name),
               { return get_function(out, handle, name); })

HOSTCUDA_ENTRY(cuModuleGetFunctionCount, 12040, plain, 0, (unsigned *out, CUmodule handle), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto &r = the_registry();
  std::lock_guard lock(r.mu);
  const auto found = r.modules.find(handle);
  if (found == r.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = static_cast<unsigned>(found->second.entries.size());
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuModuleGetGlobal_v2, 3020, needs_context, 0,
               (CUdeviceptr * at, size_t *bytes, CUmodule handle, const char *name), {
                 (void)at;
                 (void)bytes;
                 if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 auto &r = the_registry();
                 std::lock_guard lock(r.mu);
                 // Variables in PTX have no storage.
                 return r.modules.contains(handle) ? CUDA_ERROR_NOT_FOUND
                                                   : CUDA_ERROR_INVALID_HANDLE;
               })

HOSTCUDA_ENTRY(cuFuncGetAttribute, 2020, plain, 0,
               (int *out, CUfunction_attribute what, CUfunction function),
               { return get_attribute(out, what, function); })

HOSTCUDA_ENTRY(cuFuncSetAttribute, 9000, plain, 0,
               (CUfunction function, CUfunction_attribute what, int value),
               { return set_attribute(function, what, value); })

HOSTCUDA_ENTRY(cuFuncGetModule, 11000, plain, 0, (CUmodule * out, CUfunction handle), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto f = find_function(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  *out = f->module;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuFuncGetName, 12030, plain, 0, (const char **out, CUfunction handle), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto f = find_function(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  *out = f->kernel->entry.c_str();
  return CUDA_SUCCESS;
})
