// cuMemcpyBatchAsync: several copies in one call, in no order among themselves.
#include <utility>
#include <vector>

#include "hostcuda/src/context.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/memory/copy.h"

#if CUDA_VERSION >= 12080
namespace hostcuda {
namespace {

struct copy_batch {
  const CUdeviceptr *to;
  const CUdeviceptr *from;
  const size_t *bytes;
  size_t count;
  const CUmemcpyAttributes *attributes;
  const size_t *first;  // the copy at which each attribute begins
  size_t attribute_count;
};

bool is_valid(const copy_batch &b) {
  if (b.to == nullptr || b.from == nullptr || b.bytes == nullptr || b.count == 0) return false;
  if (b.attributes == nullptr || b.first == nullptr || b.attribute_count == 0) return false;
  if (b.attribute_count > b.count || b.first[0] != 0) return false;
  for (size_t i = 0; i < b.attribute_count; ++i) {
    if (i != 0 && b.first[i] <= b.first[i - 1]) return false;
    if (b.first[i] >= b.count) return false;
    const auto order = static_cast<unsigned>(b.attributes[i].srcAccessOrder);
    if (order == 0 || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY) return false;
  }
  return true;
}

// Checks all copies before it queues the first. `failed` receives the index of the copy that is
// wrong; SIZE_MAX if the error is not of one copy.
CUresult run_batch(const copy_batch &b, size_t *failed, CUstream stream) {
  if (failed != nullptr) *failed = ~size_t{0};
  if (!is_valid(b) || stream == nullptr || stream == CU_STREAM_LEGACY)
    return CUDA_ERROR_INVALID_VALUE;
  const CUdevice device = current_context()->device;
  std::vector<copy_request> all(b.count);
  std::vector<operation> ops(b.count);
  for (size_t i = 0; i < b.count; ++i) {
    all[i].what = "cuMemcpyBatchAsync";
    all[i].width = b.bytes[i];
    all[i].to = {side::unified, b.to[i], b.bytes[i], device};
    all[i].from = {side::unified, b.from[i], b.bytes[i], device};
    if (const CUresult r = make_copy(all[i], &ops[i]); r != CUDA_SUCCESS) {
      if (failed != nullptr) *failed = i;
      return r;
    }
  }
  for (size_t i = 0; i < b.count; ++i) {
    const CUresult r = queue_copy(all[i], std::move(ops[i]), stream);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_STREAM_ENTRY(cuMemcpyBatchAsync, 12080, needs_context, 0, stream,
                      (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
                       CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                       size_t *failed, CUstream stream),
                      (to, from, bytes, count, attributes, first, attribute_count, failed, stream),
                      {
                        return run_batch(
                            {to, from, bytes, count, attributes, first, attribute_count}, failed,
                            stream);
                      })
HOSTCUDA_STREAM_ENTRY(cuMemcpyBatchAsync_v2, 13000, needs_context, 0, stream,
                      (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
                       CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                       CUstream stream),
                      (to, from, bytes, count, attributes, first, attribute_count, stream), {
                        return run_batch(
                            {to, from, bytes, count, attributes, first, attribute_count}, nullptr,
                            stream);
                      })
#else
using namespace hostcuda;
HOSTCUDA_NOT_PROVIDED(cuMemcpyBatchAsync, 12080)
HOSTCUDA_NOT_PROVIDED(cuMemcpyBatchAsync_ptsz, 12080)
HOSTCUDA_NOT_PROVIDED(cuMemcpyBatchAsync_v2, 13000)
HOSTCUDA_NOT_PROVIDED(cuMemcpyBatchAsync_v2_ptsz, 13000)
#endif
