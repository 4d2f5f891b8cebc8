// dlsym and dlopen as the service's own code calls them: those behind the preload. Through the program's first ones,
// which may be another interposer's, the service would find the preload's wrappers in the place of the driver.
#include <dlfcn.h>

#include "preload/lookup/loader.h"

extern "C" void *dlsym(void *handle, const char *name) noexcept {
  return stillmap::preload::next_dlsym.get()(handle, name);
}
extern "C" void *dlopen(const char *file, int flags) noexcept {
  return stillmap::preload::next_dlopen.get()(file, flags);
}
