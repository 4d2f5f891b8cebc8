// Green contexts: parts of a device's multiprocessors, as records. Work in a green context runs as work
// of its primary context does, to which all that is created in it belongs.
//
// A green context is never freed, like a context, so that a stale handle can be checked safely.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

namespace hostcuda {

struct context;

struct green_context {
  context *primary = nullptr;
  std::uint64_t life = 0;  // context::lives of the primary context
  unsigned multiprocessors = 0;
  std::atomic<bool> alive{true};
  char converted = 0;  // its address is the CUcontext of cuCtxFromGreenCtx
};

green_context *add_green_context(context *primary, std::uint64_t life, unsigned multiprocessors);

// The green context of a CUgreenCtx or, with `converted`, of a CUcontext; nullptr if there never was
// one. It may be dead.
green_context *find_green_context(const void *handle, bool converted);

CUcontext converted_handle(green_context *g);

}  // namespace hostcuda
