// Libraries (cuLibrary*) and their kernels (cuKernel*), which belong to no context.
#include <algorithm>

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/module.h"

namespace hostcuda {
namespace {

bool valid_library_options(unsigned count, const CUlibraryOption *options, bool from_file) {
  if (count != 0 && options == nullptr) return false;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] < 0 || options[i] >= CU_LIBRARY_NUM_OPTIONS) return false;
    if (from_file && options[i] == CU_LIBRARY_BINARY_IS_PRESERVED) return false;
  }
  return true;
}

CUresult add_library(CUresult parsed, std::shared_ptr<const code_image> image, CUlibrary *out) {
  if (parsed != CUDA_SUCCESS) return parsed;
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  const auto handle = r.new_module_handle<CUlibrary>(7);
  r.libraries[handle].image = std::move(image);
  *out = handle;
  return CUDA_SUCCESS;
}

CUresult unload_library(CUlibrary handle) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<module_variable> variables;
  {
    auto &r = the_modules();
    std::lock_guard lock(r.mu);
    const auto found = r.libraries.find(handle);
    if (found == r.libraries.end()) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto &[ctx, module] : found->second.modules) unload_module(r, module, &variables);
    for (const auto &[name, kernel] : found->second.kernels) r.kernels.erase(kernel);
    r.libraries.erase(found);
  }
  end_variables(variables);
  return CUDA_SUCCESS;
}

// The module of a library in the current context; nullptr for an unknown library.
CUmodule current_module_of(CUlibrary handle) {
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  return module_of(r, handle, current_context());
}

bool asks_for_variable(const void *at, const void *bytes, const char *name) {
  return name != nullptr && (at != nullptr || bytes != nullptr);
}

// Calls use(kernel) with the lock held.
template <class Use>
CUresult with_kernel(CUkernel handle, const Use &use) {
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  const auto found = r.kernels.find(handle);
  return found == r.kernels.end() ? CUDA_ERROR_INVALID_HANDLE : use(*found->second);
}

// The attributes of a kernel on a device; nullptr with *error set.
std::shared_ptr<function_attributes> kernel_attributes(CUkernel handle, CUdevice device,
                                                       CUresult *error) {
  std::shared_ptr<function_attributes> out;
  *error = with_kernel(handle, [&](library_kernel &kernel) {
    if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    out = attributes_of(kernel, device);
    return CUDA_SUCCESS;
  });
  return out;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuLibraryLoadData, 12000, plain, 0,
               (CUlibrary * out, const void *code, CUjit_option *jit, void **jit_values,
                unsigned jit_count, CUlibraryOption *options, void **, unsigned count),
               {
                 const jit_options how{jit_count, jit, jit_values};
                 if (out == nullptr || code == nullptr || !how.valid() ||
                     !valid_library_options(count, options, false))
                   return CUDA_ERROR_INVALID_VALUE;
                 std::shared_ptr<const code_image> image;
                 const CUresult r = parse_image(code, how, &image);
                 return add_library(r, std::move(image), out);
               })

HOSTCUDA_ENTRY(cuLibraryLoadFromFile, 12000, plain, 0,
               (CUlibrary * out, const char *path, CUjit_option *jit, void **jit_values,
                unsigned jit_count, CUlibraryOption *options, void **, unsigned count),
               {
                 const jit_options how{jit_count, jit, jit_values};
                 if (out == nullptr || path == nullptr || !how.valid() ||
                     !valid_library_options(count, options, true))
                   return CUDA_ERROR_INVALID_VALUE;
                 std::shared_ptr<const code_image> image;
                 const CUresult r = parse_file(path, how, &image);
                 return add_library(r, std::move(image), out);
               })

HOSTCUDA_ENTRY(cuLibraryUnload, 12000, ignores_sticky, 0, (CUlibrary handle),
               { return unload_library(handle); })

HOSTCUDA_ENTRY(cuLibraryGetKernel, 12000, plain, 0,
               (CUkernel * out, CUlibrary handle, const char *name), {
                 if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 auto &r = the_modules();
                 std::lock_guard lock(r.mu);
                 return get_kernel(r, handle, name, false, out);
               })

HOSTCUDA_ENTRY(cuLibraryGetModule, 12000, needs_context, 0, (CUmodule * out, CUlibrary handle), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUmodule module = current_module_of(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *out = module;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuLibraryGetGlobal, 12000, needs_context, 0,
               (CUdeviceptr * at, size_t *bytes, CUlibrary handle, const char *name), {
                 if (!asks_for_variable(at, bytes, name)) return CUDA_ERROR_INVALID_VALUE;
                 return find_variable(current_module_of(handle), name, at, bytes);
               })

HOSTCUDA_ENTRY(cuLibraryGetManaged, 12000, plain, 0,
               (CUdeviceptr * at, size_t *bytes, CUlibrary handle, const char *name), {
                 if (!asks_for_variable(at, bytes, name)) return CUDA_ERROR_INVALID_VALUE;
                 auto &r = the_modules();
                 std::lock_guard lock(r.mu);
                 // Managed variables are not offered.
                 return r.libraries.contains(handle) ? CUDA_ERROR_NOT_FOUND
                                                     : CUDA_ERROR_INVALID_HANDLE;
               })

HOSTCUDA_ENTRY(cuKernelGetFunction, 12000, needs_context, 0, (CUfunction * out, CUkernel handle), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_kernel(handle, [&](const library_kernel &kernel) {
    auto &r = the_modules();
    const CUmodule module = module_of(r, kernel.library, current_context());
    return get_function(r, module, kernel.name.c_str(), true, out);
  });
})

HOSTCUDA_ENTRY(cuKernelGetAttribute, 12000, plain, 0,
               (int *out, CUfunction_attribute what, CUkernel handle, CUdevice device), {
                 if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 CUresult error = CUDA_SUCCESS;
                 const auto attributes = kernel_attributes(handle, device, &error);
                 return attributes ? get_attribute(out, what, *attributes) : error;
               })

HOSTCUDA_ENTRY(cuKernelSetAttribute, 12000, plain, 0,
               (CUfunction_attribute what, int value, CUkernel handle, CUdevice device), {
                 CUresult error = CUDA_SUCCESS;
                 const auto attributes = kernel_attributes(handle, device, &error);
                 return attributes ? set_attribute(what, value, attributes.get()) : error;
               })

HOSTCUDA_ENTRY(cuKernelSetCacheConfig, 12000, plain, 0,
               (CUkernel handle, CUfunc_cache, CUdevice device), {
                 CUresult error = CUDA_SUCCESS;
                 kernel_attributes(handle, device, &error);
                 return error;
               })

// The functions below are newer than the first headers of CUDA 12.
#if CUDA_VERSION >= 12030
HOSTCUDA_ENTRY(cuKernelGetName, 12030, plain, 0, (const char **out, CUkernel handle), {
  if (out == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_kernel(handle, [&](const library_kernel &kernel) {
    *out = kernel.name.c_str();
    return CUDA_SUCCESS;
  });
})
#else
HOSTCUDA_NOT_PROVIDED(cuKernelGetName, 12030)
#endif

#if CUDA_VERSION >= 12040
HOSTCUDA_ENTRY(cuLibraryGetKernelCount, 12040, plain, 0, (unsigned *out, CUlibrary handle), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  const auto found = r.libraries.find(handle);
  if (found == r.libraries.end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = static_cast<unsigned>(found->second.image->kernels.size());
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuLibraryEnumerateKernels, 12040, plain, 0,
               (CUkernel * out, unsigned count, CUlibrary handle), {
                 if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 auto &r = the_modules();
                 std::lock_guard lock(r.mu);
                 const auto found = r.libraries.find(handle);
                 if (found == r.libraries.end()) return CUDA_ERROR_INVALID_HANDLE;
                 const auto image = found->second.image;
                 for (std::size_t i = 0; i < std::min<std::size_t>(count, image->kernels.size());
                      ++i)
                   get_kernel(r, handle, image->kernels[i].name.c_str(), true, &out[i]);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuKernelGetParamInfo, 12040, plain, 0,
               (CUkernel handle, size_t index, size_t *offset, size_t *bytes), {
                 return with_kernel(handle, [&](const library_kernel &kernel) {
                   return param_info(kernel.params, index, offset, bytes);
                 });
               })
#else
HOSTCUDA_NOT_PROVIDED(cuKernelGetParamInfo, 12040)
HOSTCUDA_NOT_PROVIDED(cuLibraryGetKernelCount, 12040)
HOSTCUDA_NOT_PROVIDED(cuLibraryEnumerateKernels, 12040)
#endif

#if CUDA_VERSION >= 12050
HOSTCUDA_ENTRY(cuKernelGetLibrary, 12050, plain, 0, (CUlibrary * out, CUkernel handle), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_kernel(handle, [&](const library_kernel &kernel) {
    *out = kernel.library;
    return CUDA_SUCCESS;
  });
})
#else
HOSTCUDA_NOT_PROVIDED(cuKernelGetLibrary, 12050)
#endif
