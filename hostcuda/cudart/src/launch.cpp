// Kernel launches.
#include <array>
#include <cstdint>
#include <vector>

#include "hostcuda/cudart/src/registration.h"

namespace cudart {
namespace {

// What kernel<<<...>>> pushes, and the stub of the kernel pops.
struct call_configuration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  cudaStream_t stream;
};

std::vector<call_configuration> &configurations() {
  static thread_local std::vector<call_configuration> stack;
  return stack;
}

int launch_limit(CUdevice_attribute attribute) {
  int value = 0;
  const CUresult r = CUDART_DRIVER(cuDeviceGetAttribute)(&value, attribute, current_device());
  return r == CUDA_SUCCESS ? value : 0;
}

// The driver returns INVALID_VALUE for dimensions that the runtime has an error of its own for.
bool valid_dimensions(const dim3 &grid, const dim3 &block) {
  const std::array<unsigned, 6> sizes = {block.x, block.y, block.z, grid.x, grid.y, grid.z};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto attribute = static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
    if (sizes[i] == 0 || sizes[i] > static_cast<unsigned>(launch_limit(attribute))) return false;
  }
  return std::uint64_t{block.x} * block.y * block.z <=
         static_cast<std::uint64_t>(launch_limit(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
}

cudaError_t launch(const void *function, const dim3 &grid, const dim3 &block, void **arguments,
                   size_t shared_bytes, cudaStream_t stream, CUlaunchAttribute *attributes,
                   unsigned attribute_count) {
  CUfunction kernel = nullptr;
  CUDART_TRY(find_function(function, &kernel));
  if (!valid_dimensions(grid, block)) return cudaErrorInvalidConfiguration;
  const auto shared = static_cast<unsigned>(shared_bytes);
  if (attribute_count == 0)
    return from_driver(CUDART_DRIVER(cuLaunchKernel)(kernel, grid.x, grid.y, grid.z, block.x,
                                                     block.y, block.z, shared, stream, arguments,
                                                     nullptr));
  CUlaunchConfig config{};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = grid.z;
  config.blockDimX = block.x;
  config.blockDimY = block.y;
  config.blockDimZ = block.z;
  config.sharedMemBytes = shared;
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = attribute_count;
  return from_driver(CUDART_DRIVER(cuLaunchKernelEx)(&config, kernel, arguments, nullptr));
}

cudaError_t launch_cooperative(const void *function, const dim3 &grid, const dim3 &block,
                               void **arguments, size_t shared_bytes, cudaStream_t stream) {
  CUlaunchAttribute cooperative{};
  cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  cooperative.value.cooperative = 1;
  return launch(function, grid, block, arguments, shared_bytes, stream, &cooperative, 1);
}

static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute) &&
              static_cast<int>(cudaLaunchAttributeCooperative) == CU_LAUNCH_ATTRIBUTE_COOPERATIVE);

cudaError_t launch_configured(const cudaLaunchConfig_t *config, const void *function,
                              void **arguments, cudaStream_t default_stream) {
  if (config == nullptr) return cudaErrorInvalidValue;
  const cudaStream_t stream = config->stream != nullptr ? config->stream : default_stream;
  return launch(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                stream, same<CUlaunchAttribute>(config->attrs), config->numAttrs);
}

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_STREAM_ENTRY(cudaLaunchKernel, stream,
                    (const void *function, dim3 grid, dim3 block, void **arguments,
                     size_t shared_bytes, cudaStream_t stream),
                    {
                      return launch(function, grid, block, arguments, shared_bytes, stream, nullptr,
                                    0);
                    })
CUDART_STREAM_ENTRY(cudaLaunchCooperativeKernel, stream,
                    (const void *function, dim3 grid, dim3 block, void **arguments,
                     size_t shared_bytes, cudaStream_t stream),
                    {
                      return launch_cooperative(function, grid, block, arguments, shared_bytes,
                                                stream);
                    })
CUDART_ENTRY(cudaLaunchKernelExC,
             (const cudaLaunchConfig_t *config, const void *function, void **arguments),
             { return launch_configured(config, function, arguments, nullptr); })
CUDART_ENTRY(cudaLaunchKernelExC_ptsz,
             (const cudaLaunchConfig_t *config, const void *function, void **arguments),
             { return launch_configured(config, function, arguments, cudaStreamPerThread); })

// ---- Called by generated code

CUDART_STREAM_ENTRY(__cudaLaunchKernel, stream,
                    (CUkernel kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                     cudaStream_t stream),
                    {
                      return launch(kernel, grid, block, arguments, shared_bytes, stream, nullptr,
                                    0);
                    })

CUDART_EXPORT(unsigned)
__cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st *stream) {
  return enter([&] {
    configurations().push_back({grid, block, shared_bytes, stream});
    return cudaSuccess;
  });
}

CUDART_EXPORT(cudaError_t)
__cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
  return enter([&]() -> cudaError_t {
    if (configurations().empty()) return cudaErrorMissingConfiguration;
    const call_configuration top = configurations().back();
    configurations().pop_back();
    *grid = top.grid;
    *block = top.block;
    *shared_bytes = top.shared_bytes;
    *static_cast<cudaStream_t *>(stream) = top.stream;
    return cudaSuccess;
  });
}
