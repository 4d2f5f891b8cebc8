// Finds the driver, libcuda.so.1, as the program's loader does.
#include <dlfcn.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

void *driver_library() {
  // Never closed: the program may call the runtime until its last instruction.
  static void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  return library;
}

struct driver_symbols {
  std::mutex mutex;
  std::unordered_map<std::string, void *> found;
};

driver_symbols &symbols() {
  static auto *const table = new driver_symbols;
  return *table;
}

}  // namespace

bool have_driver() {
  return driver_library() != nullptr;
}

void *find_driver_function(const char *symbol) {
  if (driver_library() == nullptr) return nullptr;
  std::lock_guard lock(symbols().mutex);
  const auto [at, fresh] = symbols().found.try_emplace(symbol, nullptr);
  if (fresh) at->second = dlsym(driver_library(), symbol);
  return at->second;
}

}  // namespace cudart
