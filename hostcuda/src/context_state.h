// What the memory side keeps per context and the execution side does not need.
#pragma once

#include <cstddef>
#include <mutex>
#include <set>

#include "context.h"

namespace hostcuda {

constexpr std::size_t kLimits = 8;

struct context_state {
  context ctx;
  std::mutex life;        // one thread at a time revives a primary context
  unsigned retained = 0;  // of a primary context; guarded by the books of the contexts
  std::set<context *> peers;
  // Values of CUlimit in its order, as a fresh context of a large GPU answers them.
  std::size_t limits[kLimits] = {1024, std::size_t{1} << 20, std::size_t{8} << 20, 2, 2048, 64, 0,
                                 0};
};

context_state *state_of(context *ctx);

// Whether a context of device `from` has enabled access to a context of `owner`.
bool peer_enabled(CUdevice from, CUdevice owner);

}  // namespace hostcuda
