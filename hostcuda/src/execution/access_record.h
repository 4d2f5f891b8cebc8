// Record of one access of queued work to a device range. The oracle keeps these records.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "hostcuda/src/call_site.h"

namespace hostcuda {

struct context;
struct timeline;

struct record {
  std::shared_ptr<timeline> line;
  std::uint64_t tick = 0;
  std::uint64_t serial = 0;  // order of queueing over all streams
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  bool write = false;
  const char *what = "";
  context *ctx = nullptr;
  call_site site{};
};

}  // namespace hostcuda
