// Initialisation of the library, and what each of its calls begins with.
//
// All figures come from hostcuda_get_device and hostcuda_each_process, which need neither cuInit nor a context: programs ask
// NVML about devices to keep CUDA uninitialised until after they have forked.
#pragma once

#include <hostcuda/hostcuda.h>

#include <cstddef>
#include <vector>

#include "hostcuda/nvml/src/nvml_api.h"

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))

namespace nvml {

// Whether an nvmlInit has no nvmlShutdown yet.
bool initialised();

// Describes a device of the machine, by its ordinal. False if there is none.
// Requires: initialised().
bool describe(int ordinal, hostcuda_device *out);

struct process {
  unsigned pid;
  std::size_t bytes;
};

// The processes with a context on a device.
// Requires: initialised().
std::vector<process> processes_on(int ordinal);

// The number of devices. A hostcuda_reset changes it.
// Requires: initialised().
unsigned device_count();

// The handle of an ordinal, and back. A handle stays valid while the machine has the device.
nvmlDevice_t handle_of(int ordinal);
int ordinal_of(nvmlDevice_t device);

// Copies text to the caller's buffer.
nvmlReturn_t put(const char *text, char *out, unsigned length);

// Runs the body of a function that needs the library only.
template <class Body>
nvmlReturn_t enter(const Body &body) {
  return initialised() ? body() : NVML_ERROR_UNINITIALIZED;
}

// Runs the body of a function of a device: body(ordinal, description).
template <class Body>
nvmlReturn_t enter(nvmlDevice_t device, const Body &body) {
  if (!initialised()) return NVML_ERROR_UNINITIALIZED;
  const int ordinal = ordinal_of(device);
  hostcuda_device description{};
  if (ordinal < 0 || !describe(ordinal, &description)) return NVML_ERROR_INVALID_ARGUMENT;
  return body(ordinal, description);
}

}  // namespace nvml
