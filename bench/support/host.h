// The environment of benchmarks: variables, the driver and hostcuda.
#pragma once

#include <hostcuda/hostcuda.h>

#include <string>

#include "stillmap/vmm/driver.h"

namespace stillmap::bench {

// The value of a variable; "" if it is not set.
const char *environment(const char *name);

// The driver that STILLMAP_DRIVER names; if it is not set, that of a GPU, else hostcuda.
result<driver *> find_driver();

// The commit that was built, for reports: STILLMAP_COMMIT, or "unknown".
std::string commit();

// The settings of the variable HOSTCUDA, followed by `more`.
std::string hostcuda_settings(const std::string &more);

// Calls one of hostcuda's own functions, which is looked up at run time: a GPU's driver has none.
// Returns whether it exists and succeeded.
template <class Function, class... Arguments>
bool call_hostcuda(const driver &drv, const char *name, Arguments... arguments) {
  void *const symbol = drv.symbol(name);
  return symbol != nullptr && reinterpret_cast<Function *>(symbol)(arguments...) == CUDA_SUCCESS;
}

// All 0 on a GPU.
hostcuda_counters hostcuda_counters_of(const driver &drv);

// TMPDIR, or /tmp.
std::string temporary_folder();
// A path in a folder that no other process uses.
std::string file_for_bench(const std::string &folder, const char *ending);

}  // namespace stillmap::bench
