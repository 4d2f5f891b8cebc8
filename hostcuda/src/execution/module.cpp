#include "hostcuda/src/execution/module.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory.h"

namespace hostcuda {
namespace {

constexpr jit_options no_options{0, nullptr, nullptr};

CUresult finish_load(CUresult parsed, std::shared_ptr<const code_image> image, CUmodule *out) {
  if (parsed != CUDA_SUCCESS) return parsed;
  module_data data;
  data.ctx = current_context();
  data.image = std::move(image);
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  *out = add_module(r, std::move(data));
  return CUDA_SUCCESS;
}

CUresult load_module(CUmodule *out, const void *image, const jit_options &jit) {
  if (out == nullptr || image == nullptr || !jit.valid()) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<const code_image> parsed;
  const CUresult r = parse_image(image, jit, &parsed);
  return finish_load(r, std::move(parsed), out);
}

CUresult load_module_file(CUmodule *out, const char *path) {
  if (out == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<const code_image> parsed;
  const CUresult r = parse_file(path, no_options, &parsed);
  return finish_load(r, std::move(parsed), out);
}

bool has_kernel(const code_image &image, const char *name) {
  return image.any_name ? *name != '\0' : image.find(name) != nullptr;
}

std::shared_ptr<const host_kernel> registered(module_registry &r, const std::string &name) {
  const auto found = r.host_kernels.find(name);
  return found == r.host_kernels.end() ? nullptr : found->second;
}

// As registered, because that is how the launch reads them; otherwise as the PTX declares them.
std::vector<kernel_param> params_of(module_registry &r, const code_image &image,
                                    const std::string &name) {
  if (const auto kernel = registered(r, name)) return lay_out(kernel->param_bytes);
  const image_kernel *const known = image.find(name);
  return known != nullptr ? known->params : std::vector<kernel_param>{};
}

kernel_resources resources_of(const code_image &image, const std::string &name) {
  const image_kernel *const known = image.find(name);
  return known != nullptr ? known->uses : kernel_resources{};
}

}  // namespace

module_registry &the_modules() {
  static auto *const the = new module_registry;
  return *the;
}

bool is_launchable(module_registry &r, const std::string &name) {
  if (current_settings().skip_kernels || r.host_kernels.contains(name)) return true;
  if (r.complained.insert(name).second) {
    std::fprintf(stderr,
                 "hostcuda: kernel '%s' is in the module, but hostcuda does not run GPU code; "
                 "register a host function with hostcuda_register_kernel(\"%s\", ...), or set "
                 "kernels=skip\n",
                 name.c_str(), name.c_str());
  }
  return false;
}

CUmodule add_module(module_registry &r, module_data data) {
  const auto handle = r.new_module_handle<CUmodule>(5);
  r.modules.emplace(handle, std::move(data));
  return handle;
}

CUresult get_function(module_registry &r, CUmodule handle, const char *name, bool any,
                      CUfunction *out) {
  const auto found = r.modules.find(handle);
  if (found == r.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
  module_data &data = found->second;
  if (!has_kernel(*data.image, name)) return CUDA_ERROR_NOT_FOUND;
  if (!any && !is_launchable(r, name)) return CUDA_ERROR_NOT_FOUND;
  if (const auto given = data.functions.find(name); given != data.functions.end()) {
    *out = given->second;
    return CUDA_SUCCESS;
  }
  auto f = std::make_shared<function>();
  f->handle = r.new_module_handle<CUfunction>(6);
  f->module = handle;
  f->ctx = data.ctx;
  f->name = name;
  f->kernel = registered(r, f->name);
  f->params = params_of(r, *data.image, f->name);
  f->attributes = std::make_shared<function_attributes>(resources_of(*data.image, f->name));
  if (data.library != nullptr) {
    CUkernel kernel = nullptr;
    if (get_kernel(r, data.library, name, true, &kernel) == CUDA_SUCCESS) {
      library_kernel &common = *r.kernels.at(kernel);
      f->attributes = attributes_of(common, data.ctx->device);
      if (common.host) f->kernel = common.host;
    }
  }
  *out = f->handle;
  data.functions.emplace(name, f->handle);
  r.functions.emplace(f->handle, std::move(f));
  return CUDA_SUCCESS;
}

CUresult get_kernel(module_registry &r, CUlibrary handle, const char *name, bool any,
                    CUkernel *out) {
  const auto found = r.libraries.find(handle);
  if (found == r.libraries.end()) return CUDA_ERROR_INVALID_HANDLE;
  library_data &data = found->second;
  if (!has_kernel(*data.image, name)) return CUDA_ERROR_NOT_FOUND;
  if (!any && !is_launchable(r, name)) return CUDA_ERROR_NOT_FOUND;
  auto [given, is_new] = data.kernels.try_emplace(name);
  if (is_new) {
    auto kernel = std::make_shared<library_kernel>();
    kernel->handle = r.new_module_handle<CUkernel>(8);
    kernel->library = handle;
    kernel->name = name;
    kernel->params = params_of(r, *data.image, kernel->name);
    kernel->uses = resources_of(*data.image, kernel->name);
    given->second = kernel->handle;
    r.kernels.emplace(kernel->handle, std::move(kernel));
  }
  *out = given->second;
  return CUDA_SUCCESS;
}

CUmodule module_of(module_registry &r, CUlibrary handle, context *ctx) {
  const auto found = r.libraries.find(handle);
  if (found == r.libraries.end()) return nullptr;
  auto [module, is_new] = found->second.modules.try_emplace(ctx);
  if (is_new) {
    module_data data;
    data.ctx = ctx;
    data.image = found->second.image;
    data.library = handle;
    module->second = add_module(r, std::move(data));
  }
  return module->second;
}

void unload_module(module_registry &r, CUmodule handle, std::vector<module_variable> *variables) {
  const auto found = r.modules.find(handle);
  if (found == r.modules.end()) return;
  for (const auto &[name, variable] : found->second.variables) variables->push_back(variable);
  for (const auto &entry : found->second.functions) r.functions.erase(entry.second);
  r.modules.erase(found);
}

void end_variables(const std::vector<module_variable> &variables) {
  for (const module_variable &v : variables) destroy_variable(v.at, v.bytes, v.device);
}

namespace {

// Creates a variable of a module, without the lock, which is not nested with that of memory. Another
// thread may have made it meanwhile.
CUresult make_variable(CUmodule handle, const image_variable &declared, module_variable *found) {
  module_variable made{0, declared.bytes, current_context()->device};
  if (const CUresult e = create_variable(declared.initial, made.bytes, &made.at); e != CUDA_SUCCESS)
    return e;
  *found = made;
  bool kept = false;
  {
    auto &r = the_modules();
    std::lock_guard lock(r.mu);
    if (const auto module = r.modules.find(handle); module != r.modules.end()) {
      const auto [entry, is_new] = module->second.variables.try_emplace(declared.name, made);
      *found = entry->second;
      kept = is_new;
    }
  }
  if (!kept) end_variables({made});
  return CUDA_SUCCESS;
}

}  // namespace

CUresult find_variable(CUmodule handle, const char *name, CUdeviceptr *at, std::size_t *bytes) {
  auto &r = the_modules();
  std::shared_ptr<const code_image> image;
  module_variable found;
  {
    std::lock_guard lock(r.mu);
    const auto module = r.modules.find(handle);
    if (module == r.modules.end() || module->second.ctx != current_context())
      return CUDA_ERROR_INVALID_HANDLE;
    image = module->second.image;
    const auto known = module->second.variables.find(name);
    if (known != module->second.variables.end()) found = known->second;
  }
  if (found.at == 0) {
    const image_variable *const declared = image->find_variable(name);
    if (declared == nullptr) return CUDA_ERROR_NOT_FOUND;
    if (const CUresult e = make_variable(handle, *declared, &found); e != CUDA_SUCCESS) return e;
  }
  if (at != nullptr) *at = found.at;
  if (bytes != nullptr) *bytes = found.bytes;
  return CUDA_SUCCESS;
}

std::shared_ptr<function_attributes> attributes_of(library_kernel &kernel, CUdevice device) {
  auto &of_device = kernel.attributes[device];
  if (!of_device) of_device = std::make_shared<function_attributes>(kernel.uses);
  return of_device;
}

std::shared_ptr<function> find_function(CUfunction handle, context *ctx) {
  if (ctx == nullptr) ctx = current_context();
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  if (const auto kernel = r.kernels.find(reinterpret_cast<CUkernel>(handle));
      kernel != r.kernels.end()) {
    if (ctx == nullptr || !ctx->alive) return nullptr;
    const CUmodule module = module_of(r, kernel->second->library, ctx);
    if (get_function(r, module, kernel->second->name.c_str(), true, &handle) != CUDA_SUCCESS)
      return nullptr;
  }
  const auto found = r.functions.find(handle);
  return found == r.functions.end() ? nullptr : found->second;
}

std::shared_ptr<const host_kernel> host_kernel_of(const function &f) {
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  if (f.kernel) return f.kernel;
  return is_launchable(r, f.name) ? registered(r, f.name) : nullptr;
}

void forget_modules(context *ctx) {
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  std::erase_if(r.functions, [&](const auto &f) { return ctx == nullptr || f.second->ctx == ctx; });
  std::erase_if(r.modules, [&](const auto &m) { return ctx == nullptr || m.second.ctx == ctx; });
  for (auto &entry : r.libraries) entry.second.modules.erase(ctx);
  if (ctx == nullptr) {
    r.libraries.clear();
    r.kernels.clear();
  }
}

}  // namespace hostcuda

using namespace hostcuda;

namespace {

// nullptr: the arguments are not valid.
std::shared_ptr<const host_kernel> make_host_kernel(hostcuda_kernel fn, unsigned param_count,
                                                    const size_t *param_bytes) {
  if (fn == nullptr || (param_count != 0 && param_bytes == nullptr)) return nullptr;
  auto kernel = std::make_shared<host_kernel>();
  kernel->fn = fn;
  kernel->param_bytes.assign(param_bytes, param_bytes + param_count);
  // A device takes at most 32,764 bytes of parameters.
  std::size_t total = 0;
  for (const std::size_t bytes : kernel->param_bytes)
    if (bytes == 0 || bytes > 32764 || (total += bytes) > 32764) return nullptr;
  return kernel;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) CUresult hostcuda_register_kernel(
    const char *entry, hostcuda_kernel fn, unsigned param_count, const size_t *param_bytes) {
  auto kernel = make_host_kernel(fn, param_count, param_bytes);
  if (entry == nullptr || *entry == '\0' || !kernel) return CUDA_ERROR_INVALID_VALUE;
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  r.host_kernels[entry] = std::move(kernel);
  return CUDA_SUCCESS;
}

__attribute__((visibility("default"))) CUresult hostcuda_register_function(
    CUfunction handle, hostcuda_kernel fn, unsigned param_count, const size_t *param_bytes) {
  const auto kernel = make_host_kernel(fn, param_count, param_bytes);
  if (!kernel) return CUDA_ERROR_INVALID_VALUE;
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  std::vector<CUfunction> functions;
  const auto common = r.kernels.find(reinterpret_cast<CUkernel>(handle));
  if (common != r.kernels.end()) {
    common->second->host = kernel;
    for (const auto &[ctx, module] : r.libraries.at(common->second->library).modules) {
      const auto &given = r.modules.at(module).functions;
      const auto found = given.find(common->second->name);
      if (found != given.end()) functions.push_back(found->second);
    }
  } else if (r.functions.contains(handle)) {
    functions.push_back(handle);
  } else {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  for (const CUfunction f : functions) {
    r.functions.at(f)->kernel = kernel;
    r.functions.at(f)->params = lay_out(kernel->param_bytes);
  }
  return CUDA_SUCCESS;
}
}

HOSTCUDA_ENTRY(cuModuleLoadData, 2000, needs_context, 0, (CUmodule * out, const void *image),
               { return load_module(out, image, no_options); })

HOSTCUDA_ENTRY(cuModuleLoadDataEx, 2010, needs_context, 0,
               (CUmodule * out, const void *image, unsigned count, CUjit_option *options,
                void **values),
               {
                 return load_module(out, image, jit_options{count, options, values});
               })

HOSTCUDA_ENTRY(cuModuleLoadFatBinary, 2000, needs_context, 0, (CUmodule * out, const void *image),
               { return load_module(out, image, no_options); })

HOSTCUDA_ENTRY(cuModuleLoad, 2000, needs_context, 0, (CUmodule * out, const char *path),
               { return load_module_file(out, path); })

HOSTCUDA_ENTRY(cuModuleUnload, 2000, ignores_sticky, 0, (CUmodule handle), {
  std::vector<module_variable> variables;
  {
    auto &r = the_modules();
    std::lock_guard lock(r.mu);
    const auto found = r.modules.find(handle);
    if (found == r.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
    if (found->second.library != nullptr) return CUDA_ERROR_NOT_PERMITTED;  // cuLibraryUnload does
    unload_module(r, handle, &variables);
  }
  end_variables(variables);
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuModuleGetFunction, 2000, needs_context, 0,
               (CUfunction * out, CUmodule handle, const char *name), {
                 if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 auto &r = the_modules();
                 std::lock_guard lock(r.mu);
                 return get_function(r, handle, name, false, out);
               })

HOSTCUDA_ENTRY(cuModuleGetFunctionCount, 12040, plain, 0, (unsigned *out, CUmodule handle), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto &r = the_modules();
  std::lock_guard lock(r.mu);
  const auto found = r.modules.find(handle);
  if (found == r.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = static_cast<unsigned>(found->second.image->kernels.size());
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuModuleEnumerateFunctions, 12040, plain, 0,
               (CUfunction * out, unsigned count, CUmodule handle), {
                 if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 auto &r = the_modules();
                 std::lock_guard lock(r.mu);
                 const auto found = r.modules.find(handle);
                 if (found == r.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
                 const auto image = found->second.image;
                 for (std::size_t i = 0; i < std::min<std::size_t>(count, image->kernels.size());
                      ++i)
                   get_function(r, handle, image->kernels[i].name.c_str(), true, &out[i]);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuModuleGetLoadingMode, 11070, plain, 0, (CUmoduleLoadingMode * mode), {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuModuleGetGlobal_v2, 3020, needs_context, 0,
               (CUdeviceptr * at, size_t *bytes, CUmodule handle, const char *name), {
                 if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 return find_variable(handle, name, at, bytes);
               })
