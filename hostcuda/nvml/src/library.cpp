// nvmlInit and nvmlShutdown, and hostcuda's driver.
#include "hostcuda/nvml/src/library.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstring>

namespace nvml {
namespace {

using get_device = CUresult (*)(CUdevice, hostcuda_device *);
using each_process = CUresult (*)(CUdevice, void (*)(unsigned, std::size_t, void *), void *);

constexpr int kMaxDevices = 64;  // more than any machine of hostcuda has

// A handle is the address of its element. The first one is not null.
char handles[kMaxDevices];

std::atomic<unsigned> users{0};
std::atomic<each_process> visit_processes{nullptr};
std::atomic<get_device> driver{nullptr};  // set last

// Finds the driver as the loader of the program does. Never closed: see the runtime.
nvmlReturn_t find_driver() {
  if (driver.load() != nullptr) return NVML_SUCCESS;
  void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return NVML_ERROR_DRIVER_NOT_LOADED;
  void *const found = dlsym(library, "hostcuda_get_device");
  void *const visit = dlsym(library, "hostcuda_each_process");
  if (found == nullptr || visit == nullptr) {
    std::fprintf(stderr,
                 "hostcuda: nvmlInit: the program's libcuda.so.1 is not hostcuda's; put both "
                 "libraries of hostcuda in LD_LIBRARY_PATH, or neither\n");
    return NVML_ERROR_DRIVER_NOT_LOADED;
  }
  visit_processes = reinterpret_cast<each_process>(visit);
  driver = reinterpret_cast<get_device>(found);
  return NVML_SUCCESS;
}

nvmlReturn_t start() {
  if (const nvmlReturn_t r = find_driver(); r != NVML_SUCCESS) return r;
  ++users;
  return NVML_SUCCESS;
}

}  // namespace

bool initialised() {
  return users.load() != 0;
}

bool describe(int ordinal, hostcuda_device *out) {
  return driver.load()(ordinal, out) == CUDA_SUCCESS;
}

std::vector<process> processes_on(int ordinal) {
  std::vector<process> out;
  visit_processes.load()(
      ordinal,
      [](unsigned pid, std::size_t bytes, void *user) {
        static_cast<std::vector<process> *>(user)->push_back({pid, bytes});
      },
      &out);
  return out;
}

unsigned device_count() {
  hostcuda_device unused{};
  int n = 0;
  while (n < kMaxDevices && describe(n, &unused)) ++n;
  return static_cast<unsigned>(n);
}

nvmlDevice_t handle_of(int ordinal) {
  return reinterpret_cast<nvmlDevice_t>(&handles[ordinal]);
}

int ordinal_of(nvmlDevice_t device) {
  for (int i = 0; i < kMaxDevices; ++i)
    if (device == handle_of(i)) return i;
  return -1;
}

nvmlReturn_t put(const char *text, char *out, unsigned length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const std::size_t bytes = std::strlen(text) + 1;
  if (bytes > length) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text, bytes);
  return NVML_SUCCESS;
}

}  // namespace nvml

NVML_EXPORT nvmlReturn_t nvmlInit() {
  return nvml::start();
}

NVML_EXPORT nvmlReturn_t nvmlInit_v2() {
  return nvml::start();
}

// The flags allow a machine without devices, and one whose devices are not attached; hostcuda's
// machines have devices and need no attaching.
NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned) {
  return nvml::start();
}

NVML_EXPORT nvmlReturn_t nvmlShutdown() {
  unsigned n = nvml::users.load();
  do {
    if (n == 0) return NVML_ERROR_UNINITIALIZED;
  } while (!nvml::users.compare_exchange_weak(n, n - 1));
  return NVML_SUCCESS;
}
