// Prints what each function of the driver's table is found as: by dlsym, and by cuGetProcAddress in each version.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "preload/functions/driver_functions.h"

namespace {

struct row {
  const char *symbol, *name;
};
#define ROW(symbol, name, ...) {#symbol, #name},
constexpr row rows[] = {STILLMAP_DRIVER_FUNCTIONS(ROW)};

// The symbol at an address, and whether it is the driver's own.
std::string text_of(void *found) {
  Dl_info where;
  if (found == nullptr) return "nothing";
  if (::dladdr(found, &where) == 0 || where.dli_sname == nullptr) return "no symbol";
  return where.dli_sname;
}
bool in_driver(void *found) {
  Dl_info where;
  return found != nullptr && ::dladdr(found, &where) != 0 &&
         std::strstr(where.dli_fname, "libcuda.so") != nullptr;
}

}  // namespace

int main() {
  void *const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 1;
  for (const row &r : rows) {
    void *const found = ::dlsym(driver, r.symbol);
    std::printf("%s: %s%s\n", r.symbol, found == nullptr ? "missing" : "found",
                in_driver(found) ? " in the driver" : "");
  }
  using look_up = int(const char *, void **, int, std::uint64_t, int *);
  const auto find = reinterpret_cast<look_up *>(::dlsym(driver, "cuGetProcAddress_v2"));
  if (find == nullptr) return 0;
  std::set<std::string> names;
  for (const row &r : rows) names.insert(r.name);
  for (const std::string &name : names) {
    for (int version = 12000; version <= 13050; version += version == 12090 ? 910 : 10) {
      for (std::uint64_t flags = 0; flags <= 2; ++flags) {
        void *found = nullptr;
        int status = -1;
        const int code = find(name.c_str(), &found, version, flags, &status);
        std::printf("%s %d %d: %d %d %s%s\n", name.c_str(), version, static_cast<int>(flags), code,
                    status, text_of(found).c_str(), in_driver(found) ? " in the driver" : "");
      }
    }
  }
  return 0;
}
