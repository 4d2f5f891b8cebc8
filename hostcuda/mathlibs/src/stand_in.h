// Shared by the stand-ins of NVIDIA's math libraries: whether they may be used, handles, and what they
// answer. Internal. hostcuda/docs/libraries.md#math-libraries
//
// The stand-ins have the names and calling conventions of the real functions, as the public manuals
// document them, and no header of NVIDIA. In C a call passes the same registers and stack whatever the
// callee declares, so a function that ignores its arguments is defined without any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#define STAND_IN extern "C" __attribute__((visibility("default")))

// A function whose only effect is on device memory or on settings that nothing here reads.
#define STAND_IN_SUCCEEDS(name) \
  STAND_IN int name() {         \
    return 0;                   \
  }
// A function with results for the host that the stand-in does not have.
#define STAND_IN_REFUSES(name)      \
  STAND_IN int name() {             \
    return stand_in::refuse(#name); \
  }

namespace stand_in {

// Whether the driver of this process is hostcuda with kernels=skip. Otherwise prints why not, once: a
// program that has kernels must not get results that nothing has computed.
bool allowed() noexcept;

// Prints once for each function that the stand-in does not provide it. Returns the library's
// "not supported".
int refuse(const char *function) noexcept;
extern const int not_supported;    // of the library that the file is linked into
extern const int not_initialized;  // likewise

// An object behind a handle or descriptor.
template <class Object>
int create(void *out) noexcept {
  if (!allowed()) return not_initialized;
  auto *const made = new (std::nothrow) Object();
  if (made == nullptr) return not_initialized;
  std::memcpy(out, &made, sizeof made);
  return 0;
}
template <class Object>
int destroy(void *handle) noexcept {
  delete static_cast<Object *>(handle);
  return 0;
}

struct handle {
  void *stream = nullptr;
  int mode = 0;
};

}  // namespace stand_in
