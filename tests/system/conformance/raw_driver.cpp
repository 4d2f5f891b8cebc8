#include "tests/system/conformance/raw_driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <initializer_list>

namespace stillmap::conformance {
namespace {

using get_proc_address_v1 = CUresult(CUDAAPI *)(const char *, void **, int, cuuint64_t);

// How this driver hands out its functions: by one of two query functions, or by symbol alone.
// What is newer than the driver's own version counts as absent, even where the library exports a
// symbol of that name, as a library that stands for several versions does.
struct lookup {
  void *library = nullptr;
  int driver_version = 0;
  decltype(raw_driver::GetProcAddress) v2 = nullptr;
  get_proc_address_v1 v1 = nullptr;

  void *find(const char *name, int version, const char *suffix) const {
    if (version > driver_version) return nullptr;
    void *found = nullptr;
    if (v2 != nullptr) {
      CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
      if (v2(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) != CUDA_SUCCESS)
        return nullptr;
      return status == CU_GET_PROC_ADDRESS_SUCCESS ? found : nullptr;
    }
    if (v1 != nullptr)
      return v1(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM) == CUDA_SUCCESS ? found
                                                                                          : nullptr;
    return dlsym(library, (std::string(name) + suffix).c_str());
  }
};

template <typename F>
void set(F &slot, void *address) {
  slot = reinterpret_cast<F>(address);
}

void *open_library(std::string *path, std::string *reason) {
  const char *chosen = std::getenv("STILLMAP_DRIVER");
  std::string which = chosen == nullptr || *chosen == '\0' ? "cuda" : chosen;
  if (which == "host") {
    const char *file = std::getenv("STILLMAP_HOSTCUDA");
    if (file == nullptr || *file == '\0') {
      *reason = "STILLMAP_DRIVER=host, but STILLMAP_HOSTCUDA does not name hostcuda's libcuda.so.1";
      return nullptr;
    }
    which = file;
    if (which.find('/') == std::string::npos) which = "./" + which;
  }
  if (which != "cuda" && which.find('/') == std::string::npos) {
    *reason = "STILLMAP_DRIVER=" + which + " is neither cuda, host nor a path";
    return nullptr;
  }
  std::string errors;
  const auto attempt = [&](const std::string &name) -> void * {
    void *library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      *path = name;
    } else {
      const char *why = dlerror();
      errors += std::string(errors.empty() ? "" : "; ") + (why == nullptr ? "?" : why);
    }
    return library;
  };
  if (which != "cuda") {
    if (void *library = attempt(which)) return library;
  } else {
    for (const char *name : {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so"})
      if (void *library = attempt(name)) return library;
  }
  *reason = "no CUDA driver: " + errors;
  return nullptr;
}

raw_driver load() {
  raw_driver d;
  lookup from;
  from.library = open_library(&d.path, &d.missing);
  if (from.library == nullptr) return d;

  set(d.DriverGetVersion, dlsym(from.library, "cuDriverGetVersion"));
  if (d.DriverGetVersion == nullptr || d.DriverGetVersion(&from.driver_version) != CUDA_SUCCESS) {
    d.missing = d.path + " is not a CUDA driver: it does not tell its version";
    return d;
  }
  if (from.driver_version >= 12000)
    set(from.v2, dlsym(from.library, "cuGetProcAddress_v2"));
  else if (from.driver_version >= 11030)
    set(from.v1, dlsym(from.library, "cuGetProcAddress"));
  d.GetProcAddress = from.v2;

#define STILLMAP_RAW_FIND(name, since, suffix) set(d.name, from.find("cu" #name, since, suffix));
  STILLMAP_RAW_CALLS(STILLMAP_RAW_FIND)
#undef STILLMAP_RAW_FIND
  set(d.CtxSynchronize, from.find("cuCtxSynchronize", 2000, ""));
#define STILLMAP_HOSTCUDA_FIND(name) set(d.hostcuda_##name, dlsym(from.library, "hostcuda_" #name));
  STILLMAP_HOSTCUDA_CALLS(STILLMAP_HOSTCUDA_FIND)
#undef STILLMAP_HOSTCUDA_FIND

  if (d.Init == nullptr || d.DeviceGetAttribute == nullptr || d.MemAlloc == nullptr)
    d.missing =
        d.path + " is not a CUDA driver: it lacks cuInit, cuDeviceGetAttribute or cuMemAlloc";
  return d;
}

}  // namespace

const raw_driver &cu() {
  static const raw_driver loaded = load();
  return loaded;
}

}  // namespace stillmap::conformance
