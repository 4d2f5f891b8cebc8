// Initialisation of the driver, primary contexts, and the device of each thread.
#include "hostcuda/cudart/src/device_state.h"

#include <array>
#include <atomic>
#include <mutex>

namespace cudart {
namespace {

constexpr int most_devices = 64;

struct device_record {
  CUcontext primary = nullptr;  // nullptr: not retained in this life
  std::atomic<unsigned> life{1};
  std::atomic<int> sticky{cudaSuccess};
};

struct device_table {
  std::mutex mutex;
  std::atomic<unsigned> driver_life{0};  // 0: never initialised
  std::array<device_record, most_devices> devices;
};

device_table &devices() {
  static auto *const table = new device_table;
  return *table;
}

struct thread_state {
  int device = 0;  // in the life of the driver in which it was set; 0 in the next
  unsigned device_driver = 0;
  // The primary context that the library made current on this thread, and the lives it belongs to.
  CUcontext bound = nullptr;
  int bound_device = 0;
  unsigned bound_life = 0;
  unsigned bound_driver = 0;
};
thread_local thread_state this_thread;

bool known_device(int device) {
  return device >= 0 && device < most_devices;
}

bool is_current(CUcontext context) {
  const thread_state &t = this_thread;
  if (context != t.bound) return true;  // made current by the program
  return t.bound_driver == driver_life() && t.bound_life == device_life(t.bound_device);
}

int thread_device() {
  return this_thread.device_driver == driver_life() ? this_thread.device : 0;
}

cudaError_t start_driver() {
  if (!have_driver()) return cudaErrorInsufficientDriver;
  device_table &table = devices();
  std::lock_guard lock(table.mutex);
  CUcontext context = nullptr;
  if (table.driver_life != 0 && CUDART_DRIVER(cuCtxGetCurrent)(&context) == CUDA_SUCCESS)
    return cudaSuccess;  // another thread was faster
  CUDART_TRY(CUDART_DRIVER(cuInit)(0));
  for (device_record &device : table.devices) {
    device.primary = nullptr;
    device.sticky = cudaSuccess;
    ++device.life;
  }
  ++table.driver_life;
  return cudaSuccess;
}

}  // namespace

unsigned driver_life() {
  return devices().driver_life;
}

unsigned device_life(int device) {
  return known_device(device) ? devices().devices[device].life.load() : 0;
}

bool is_sticky(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

void set_sticky(int device, cudaError_t error) {
  if (known_device(device)) devices().devices[device].sticky = error;
}

cudaError_t sticky_error(int device) {
  return known_device(device) ? static_cast<cudaError_t>(devices().devices[device].sticky.load())
                              : cudaSuccess;
}

cudaError_t initialise() {
  CUcontext context = nullptr;
  if (driver_life() != 0 && CUDART_DRIVER(cuCtxGetCurrent)(&context) != CUDA_ERROR_NOT_INITIALIZED)
    return cudaSuccess;
  return start_driver();
}

CUcontext current_context() {
  CUcontext context = nullptr;
  CUDART_DRIVER(cuCtxGetCurrent)(&context);
  return context;
}

int current_device() {
  if (driver_life() == 0) return 0;
  const CUcontext context = current_context();
  CUdevice device = 0;
  if (context != nullptr && is_current(context) &&
      CUDART_DRIVER(cuCtxGetDevice)(&device) == CUDA_SUCCESS)
    return device;
  return thread_device();
}

cudaError_t primary_context(int device, CUcontext *out) {
  CUDART_TRY(initialise());
  if (!known_device(device)) return cudaErrorInvalidDevice;
  device_table &table = devices();
  std::lock_guard lock(table.mutex);
  device_record &record = table.devices[device];
  // The program may have released more uses than it had taken, so a context is not assumed to live.
  unsigned flags = 0;
  int active = 0;
  if (record.primary != nullptr) {
    CUDART_DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active);
    if (active == 0) record.primary = nullptr;
  }
  if (record.primary == nullptr)
    CUDART_TRY(CUDART_DRIVER(cuDevicePrimaryCtxRetain)(&record.primary, device));
  *out = record.primary;
  return cudaSuccess;
}

cudaError_t bind_device(int device) {
  CUDART_TRY(initialise());
  // The driver would return the error that broke the context for which a reset was the remedy.
  if (const CUcontext old = current_context(); old != nullptr && !is_current(old))
    CUDART_DRIVER(cuCtxSetCurrent)(nullptr);
  CUcontext context = nullptr;
  CUDART_TRY(primary_context(device, &context));
  CUDART_TRY(CUDART_DRIVER(cuCtxSetCurrent)(context));
  this_thread.device = device;
  this_thread.device_driver = driver_life();
  this_thread.bound = context;
  this_thread.bound_device = device;
  this_thread.bound_life = device_life(device);
  this_thread.bound_driver = driver_life();
  return cudaSuccess;
}

cudaError_t bind() {
  CUDART_TRY(initialise());
  const CUcontext context = current_context();
  if (context != nullptr && is_current(context)) return cudaSuccess;
  return bind_device(thread_device());
}

cudaError_t reset_device(int device) {
  CUDART_TRY(initialise());
  if (!known_device(device)) return cudaErrorInvalidDevice;
  device_table &table = devices();
  {
    std::lock_guard lock(table.mutex);
    CUDART_TRY(CUDART_DRIVER(cuDevicePrimaryCtxReset)(device));
    table.devices[device].primary = nullptr;
    table.devices[device].sticky = cudaSuccess;
    ++table.devices[device].life;
  }
  this_thread.device = device;
  this_thread.device_driver = driver_life();
  return cudaSuccess;
}

}  // namespace cudart
