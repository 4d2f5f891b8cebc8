#include "hostcuda/mathlibs/src/stand_in.h"

#include <dlfcn.h>

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

namespace stand_in {
namespace {

const char *reason() noexcept {
  void *const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return "there is no libcuda.so.1";
  using config_function = int (*)(const char **);
  const auto config = reinterpret_cast<config_function>(dlsym(driver, "hostcuda_config"));
  if (config == nullptr) return "the driver is not hostcuda";
  const char *text = nullptr;
  if (config(&text) != 0 || text == nullptr) return "hostcuda has no configuration";
  if (std::strstr(text, "kernels=skip") == nullptr) return "hostcuda refuses unknown kernels";
  return nullptr;
}

}  // namespace

bool allowed() noexcept {
  const char *const why = reason();
  if (why == nullptr) return true;
  static std::once_flag once;
  std::call_once(once, [why] {
    std::fprintf(stderr,
                 "hostcuda: the stand-ins of CUDA's math libraries compute nothing and need "
                 "HOSTCUDA=kernels=skip: %s\n",
                 why);
  });
  return false;
}

int refuse(const char *function) noexcept {
  try {
    static std::mutex mutex;
    static auto *const told = new std::set<std::string>;
    const std::lock_guard lock(mutex);
    if (told->insert(function).second) {
      std::fprintf(stderr, "hostcuda: %s is not provided: its library is a stand-in\n", function);
    }
  } catch (...) {  // without host memory it is not printed
  }
  return not_supported;
}

}  // namespace stand_in
