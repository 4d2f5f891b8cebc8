// Another interposer of dlsym, in the way of those that count calls.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {
std::atomic<int> calls{0};

[[gnu::destructor]] void say() {
  if (const char *const file = std::getenv("WRAP_COUNTS")) {
    if (std::FILE *const to = std::fopen(file, "w")) {
      std::fprintf(to, "%d 0 0\n", calls.load());
      std::fclose(to);
    }
  }
}
}  // namespace

extern "C" __attribute__((visibility("default"))) void *dlsym(void *handle, const char *name) {
  using function = void *(void *, const char *);
#if defined(__x86_64__)
  static const auto real =
      reinterpret_cast<function *>(::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
#else
  static const auto real = reinterpret_cast<function *>(::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17"));
#endif
  ++calls;
  return real(handle, name);
}
