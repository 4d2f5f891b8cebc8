// An image is a library of the driver, loaded when something of it is first used: the driver may not
// be initialised before main(), and a library belongs to no context.
#include "hostcuda/cudart/src/registration.h"

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace cudart {
namespace {

// The header of an image in a program, as in the toolkit's fatbinary_section.h.
struct image_header {
  int magic;
  int version;
  const void *data;
  void *file_name;
};
constexpr int image_magic = 0x466243b1;

struct program_image {
  const void *code = nullptr;
  CUlibrary library = nullptr;
  unsigned life = 0;  // of the driver, in which the library was loaded
};

struct registered_kernel {
  program_image *image = nullptr;
  std::string name;
  CUkernel kernel = nullptr;
  unsigned life = 0;
};

struct registered_variable {
  program_image *image = nullptr;
  std::string name;
  size_t bytes = 0;
  void **managed = nullptr;  // where generated code reads the address of a managed variable
  // For each device, and the life of its context.
  std::map<int, std::pair<unsigned, CUdeviceptr>> storage;
};

struct registry {
  std::mutex mutex;
  std::unordered_map<const void *, std::unique_ptr<program_image>> images;
  std::unordered_map<const void *, registered_kernel> kernels;
  std::unordered_map<const void *, registered_variable> variables;
  std::unordered_set<const void *> handles;
};

// Outlives the destructors of the program, which unregister images.
registry &registered() {
  static auto *const all = new registry;
  return *all;
}

program_image *image_of(void **handle) {
  const auto found = registered().images.find(handle);
  return found == registered().images.end() ? nullptr : found->second.get();
}

cudaError_t load_image(program_image &image) {
  if (image.library != nullptr && image.life == driver_life()) return cudaSuccess;
  image.library = nullptr;
  CUDART_TRY(CUDART_DRIVER(cuLibraryLoadData)(&image.library, image.code, nullptr, nullptr, 0,
                                              nullptr, nullptr, 0));
  image.life = driver_life();
  return cudaSuccess;
}

// hostcuda does not read the variables of an image, so it has no storage for them. Copies to and from
// symbols, and their addresses, work with storage of the registered size.
cudaError_t allocate_variable(registered_variable &v, CUdeviceptr *out) {
  if (v.managed != nullptr) {
    CUDART_TRY(CUDART_DRIVER(cuMemAllocManaged)(out, v.bytes, CU_MEM_ATTACH_GLOBAL));
  } else {
    CUDART_TRY(CUDART_DRIVER(cuMemAlloc)(out, v.bytes));
  }
  return from_driver(CUDART_DRIVER(cuMemsetD8)(*out, 0, v.bytes));
}

cudaError_t locate_variable(registered_variable &v, device_variable *out) {
  const int device = current_device();
  auto &[life, at] = v.storage[device];
  if (life != device_life(device)) {
    CUDART_TRY(load_image(*v.image));
    size_t bytes = 0;
    const CUresult r =
        CUDART_DRIVER(cuLibraryGetGlobal)(&at, &bytes, v.image->library, v.name.c_str());
    if (r == CUDA_ERROR_NOT_FOUND) {
      CUDART_TRY(allocate_variable(v, &at));
    } else {
      CUDART_TRY(r);
    }
    life = device_life(device);
    if (v.managed != nullptr) *v.managed = reinterpret_cast<void *>(at);
  }
  *out = {at, v.bytes};
  return cudaSuccess;
}

void add_variable(void **handle, const void *host, const char *name, size_t bytes, void **managed) {
  registry &all = registered();
  std::lock_guard lock(all.mutex);
  registered_variable v;
  v.image = image_of(handle);
  v.name = name;
  v.bytes = bytes;
  v.managed = managed;
  if (v.image != nullptr && bytes != 0) all.variables.insert_or_assign(host, std::move(v));
}

}  // namespace

cudaError_t find_kernel(const void *function, CUkernel *out) {
  if (function == nullptr) return cudaErrorInvalidDeviceFunction;
  CUDART_TRY(bind());
  registry &all = registered();
  std::lock_guard lock(all.mutex);
  const auto found = all.kernels.find(function);
  if (found == all.kernels.end()) {
    if (!all.handles.contains(function)) return cudaErrorInvalidDeviceFunction;
    *out = static_cast<CUkernel>(const_cast<void *>(function));
    return cudaSuccess;
  }
  registered_kernel &k = found->second;
  if (k.kernel == nullptr || k.life != driver_life()) {
    CUDART_TRY(load_image(*k.image));
    const CUresult r =
        CUDART_DRIVER(cuLibraryGetKernel)(&k.kernel, k.image->library, k.name.c_str());
    if (r == CUDA_ERROR_NOT_FOUND) return cudaErrorInvalidDeviceFunction;
    CUDART_TRY(r);
    k.life = driver_life();
    all.handles.insert(k.kernel);
  }
  *out = k.kernel;
  return cudaSuccess;
}

cudaError_t find_function(const void *function, CUfunction *out) {
  CUkernel kernel = nullptr;
  CUDART_TRY(find_kernel(function, &kernel));
  *out = reinterpret_cast<CUfunction>(kernel);  // the driver takes a CUkernel for a CUfunction
  return cudaSuccess;
}

void remember_handle(const void *handle) {
  registry &all = registered();
  std::lock_guard lock(all.mutex);
  all.handles.insert(handle);
}

cudaError_t find_variable(const void *symbol, device_variable *out) {
  CUDART_TRY(bind());
  registry &all = registered();
  std::lock_guard lock(all.mutex);
  const auto found = all.variables.find(symbol);
  if (found == all.variables.end()) return cudaErrorInvalidSymbol;
  return locate_variable(found->second, out);
}

}  // namespace cudart

using namespace cudart;

CUDART_EXPORT(void **) __cudaRegisterFatBinary(void *code) {
  registry &all = registered();
  std::lock_guard lock(all.mutex);
  auto image = std::make_unique<program_image>();
  const auto *const header = static_cast<const image_header *>(code);
  image->code = header->magic == image_magic ? header->data : code;
  const void *const handle = image.get();
  all.images.emplace(handle, std::move(image));
  return static_cast<void **>(const_cast<void *>(handle));
}

CUDART_EXPORT(void) __cudaRegisterFatBinaryEnd(void **) {}

CUDART_EXPORT(void) __cudaUnregisterFatBinary(void **handle) {
  registry &all = registered();
  std::lock_guard lock(all.mutex);
  const program_image *const image = image_of(handle);
  if (image == nullptr) return;
  std::erase_if(all.kernels, [&](const auto &k) { return k.second.image == image; });
  std::erase_if(all.variables, [&](const auto &v) { return v.second.image == image; });
  // Called at exit too, when the driver may have been shut down; its answer does not matter.
  if (image->library != nullptr && image->life == driver_life())
    CUDART_DRIVER(cuLibraryUnload)(image->library);
  all.images.erase(handle);
}

CUDART_EXPORT(void)
__cudaRegisterFunction(void **handle, const char *host, char *, const char *name, int, uint3 *,
                       uint3 *, dim3 *, dim3 *, int *) {
  registry &all = registered();
  std::lock_guard lock(all.mutex);
  registered_kernel k;
  k.image = image_of(handle);
  k.name = name;
  if (k.image != nullptr) all.kernels.insert_or_assign(host, std::move(k));
}

CUDART_EXPORT(void)
__cudaRegisterVar(void **handle, char *host, char *, const char *name, int, size_t bytes, int,
                  int) {
  add_variable(handle, host, name, bytes, nullptr);
}

CUDART_EXPORT(void)
__cudaRegisterHostVar(void **handle, const char *, char *host, size_t bytes) {
  (void)handle, (void)host, (void)bytes;  // host variables that device code reads: there is none
}

CUDART_EXPORT(void)
__cudaRegisterManagedVar(void **handle, void **host, char *, const char *name, int, size_t bytes,
                         int, int) {
  add_variable(handle, host, name, bytes, host);
}

// Generated code calls this before its first use of a managed variable on the host.
CUDART_EXPORT(char) __cudaInitModule(void **handle) {
  if (enter([&]() -> cudaError_t { return bind(); }) != cudaSuccess) return 0;
  registry &all = registered();
  std::lock_guard lock(all.mutex);
  const program_image *const image = image_of(handle);
  char done = image != nullptr;
  for (auto &[host, v] : all.variables) {
    device_variable unused;
    if (v.image == image && v.managed != nullptr &&
        enter([&, &v = v] { return locate_variable(v, &unused); }) != cudaSuccess)
      done = 0;
  }
  return done;
}
