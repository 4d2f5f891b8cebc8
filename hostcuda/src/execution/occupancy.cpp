// Occupancy of a multiprocessor, computed as the CUDA programming guide describes it from the
// attributes of the device and the function.
#include "hostcuda/src/execution/occupancy.h"

#include <algorithm>

#include "hostcuda/src/context.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"

namespace hostcuda {
namespace {

// How compute capabilities 8 and 9 allocate registers and shared memory.
constexpr int kWarp = 32;
constexpr int kRegisterUnit = 256;  // of a warp
constexpr int kWarpUnit = 4;        // a multiprocessor has four schedulers, with equal registers
constexpr std::size_t kSharedUnit = 128;
constexpr int kMaxThreads = 1024;

std::size_t shared_attribute(CUdevice_attribute what, CUdevice device) {
  return static_cast<std::size_t>(device_attribute(what, device));
}

int attribute_of(const function &f, CUfunction_attribute what) {
  std::lock_guard lock(the_modules().mu);
  return f.attributes->values.at(static_cast<std::size_t>(what));
}

std::size_t dynamic_limit(const function &f) {
  return static_cast<std::size_t>(attribute_of(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES));
}

std::size_t own_shared(const function &f) {
  return static_cast<std::size_t>(attribute_of(f, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
}

bool valid_flags(unsigned flags) {
  return (flags & ~unsigned{CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE}) == 0;
}

CUresult active_blocks(int *out, CUfunction handle, int threads, std::size_t shared,
                       unsigned flags) {
  if (out == nullptr || threads <= 0 || !valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  const auto f = find_function(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  *out = blocks_per_multiprocessor(*f, threads, shared);
  return CUDA_SUCCESS;
}

CUresult potential_block(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize shared_of,
                         std::size_t shared, int limit, unsigned flags) {
  if (grid == nullptr || block == nullptr || limit < 0 || !valid_flags(flags))
    return CUDA_ERROR_INVALID_VALUE;
  const auto f = find_function(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (limit == 0 || limit > kMaxThreads) limit = kMaxThreads;
  int best_threads = 0;
  *grid = *block = 0;
  // Downwards, because of equal occupancies the one with the fewest blocks is wanted.
  for (int warps = (limit + kWarp - 1) / kWarp; warps > 0; --warps) {
    const int threads = std::min(limit, warps * kWarp);
    const int blocks =
        blocks_per_multiprocessor(*f, threads, shared_of != nullptr ? shared_of(threads) : shared);
    if (blocks * threads <= best_threads) continue;
    best_threads = blocks * threads;
    *block = threads;
    *grid = blocks * device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, f->ctx->device);
  }
  return CUDA_SUCCESS;
}

CUresult available_shared(std::size_t *out, CUfunction handle, int blocks, int threads) {
  if (out == nullptr || blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  const auto f = find_function(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (blocks > blocks_per_multiprocessor(*f, threads, 0)) return CUDA_ERROR_INVALID_VALUE;
  const CUdevice device = f->ctx->device;
  const std::size_t of_block =
      shared_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device) /
      static_cast<std::size_t>(blocks) / kSharedUnit * kSharedUnit;
  const std::size_t reserved =
      shared_attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device);
  *out = std::min(of_block - reserved - own_shared(*f), dynamic_limit(*f));
  return CUDA_SUCCESS;
}

}  // namespace

bool shared_memory_fits(const function &f, std::size_t bytes) {
  const std::size_t most =
      shared_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, f.ctx->device);
  return bytes <= dynamic_limit(f) && bytes + own_shared(f) <= most;
}

int blocks_per_multiprocessor(const function &f, int threads, std::size_t shared) {
  const CUdevice device = f.ctx->device;
  if (threads > kMaxThreads || shared > dynamic_limit(f)) return 0;
  const int warps = (threads + kWarp - 1) / kWarp;
  const int resident_warps =
      device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) / kWarp;
  const int registers = std::max(attribute_of(f, CU_FUNC_ATTRIBUTE_NUM_REGS), 1);
  const int warp_registers =
      (registers * kWarp + kRegisterUnit - 1) / kRegisterUnit * kRegisterUnit;
  const int register_warps =
      device_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, device) /
      warp_registers / kWarpUnit * kWarpUnit;
  const std::size_t reserved =
      shared_attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device);
  const std::size_t of_block =
      (shared + own_shared(f) + reserved + kSharedUnit - 1) / kSharedUnit * kSharedUnit;
  const std::size_t of_multiprocessor =
      shared_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device);
  const int by_shared = static_cast<int>(of_multiprocessor / std::max(of_block, kSharedUnit));
  return std::min({device_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, device),
                   resident_warps / warps, register_warps / warps, by_shared});
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, needs_context, 0,
               (int *out, CUfunction f, int threads, size_t shared),
               { return active_blocks(out, f, threads, shared, 0); })

HOSTCUDA_ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, needs_context, 0,
               (int *out, CUfunction f, int threads, size_t shared, unsigned flags),
               { return active_blocks(out, f, threads, shared, flags); })

HOSTCUDA_ENTRY(cuOccupancyMaxPotentialBlockSize, 6050, needs_context, 0,
               (int *grid, int *block, CUfunction f, CUoccupancyB2DSize shared_of, size_t shared,
                int limit),
               { return potential_block(grid, block, f, shared_of, shared, limit, 0); })

HOSTCUDA_ENTRY(cuOccupancyMaxPotentialBlockSizeWithFlags, 7000, needs_context, 0,
               (int *grid, int *block, CUfunction f, CUoccupancyB2DSize shared_of, size_t shared,
                int limit, unsigned flags),
               { return potential_block(grid, block, f, shared_of, shared, limit, flags); })

HOSTCUDA_ENTRY(cuOccupancyAvailableDynamicSMemPerBlock, 10020, needs_context, 0,
               (size_t * out, CUfunction f, int blocks, int threads),
               { return available_shared(out, f, blocks, threads); })
