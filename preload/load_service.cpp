#include "preload/load_service.h"

#include <dlfcn.h>

#include <climits>
#include <cstdio>
#include <cstring>

#include "preload/lookup/loader.h"

namespace stillmap::preload {

constinit std::atomic<const service_functions *> loaded_service{nullptr};

namespace {

constexpr service_functions none{};

// It lies beside this library.
const service_functions *find_service(const char *&trouble) noexcept {
  Dl_info here;
  char path[PATH_MAX];
  const bool known = ::dladdr(&none, &here) != 0 && here.dli_fname != nullptr;
  const char *const slash = known ? std::strrchr(here.dli_fname, '/') : nullptr;
  const int folder = slash != nullptr ? static_cast<int>(slash + 1 - here.dli_fname) : 0;
  std::snprintf(path, sizeof path, "%.*slibstillmap_preload_service.so", folder,
                known ? here.dli_fname : "");
  void *const library = next_dlopen.get()(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    trouble = ::dlerror();
    return nullptr;
  }
  auto *const entry =
      reinterpret_cast<service_entry *>(next_dlsym.get()(library, "stillmap_preload_service"));
  const service_functions *const found = entry != nullptr ? entry(numbering()) : nullptr;
  if (found == nullptr) trouble = "libstillmap_preload_service.so is of another version";
  return found;
}

}  // namespace

// Several threads may do this at once: the library is loaded once, and they find the same. No lock is held meanwhile,
// because one of them may have the loader's.
const service_functions *load_service() noexcept {
  const char *trouble = nullptr;
  const service_functions *found = find_service(trouble);
  const service_functions *before = nullptr;
  const service_functions *const use = found != nullptr ? found : &none;
  if (!loaded_service.compare_exchange_strong(before, use)) return before;
  if (found == nullptr) {
    std::fprintf(stderr, "stillmap: the driver serves all memory of this program: %s\n",
                 trouble != nullptr ? trouble : "the service cannot be loaded");
  }
  return use;
}

}  // namespace stillmap::preload
