// Tensor maps: descriptors of tiles for the tensor memory accelerator (TMA). A map is opaque, and only
// kernels read it, so hostcuda checks the arguments as cuda.h requires and keeps what it was given.
#include <array>
#include <cstdint>
#include <cstring>

#include "hostcuda/src/context.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"

namespace hostcuda {
namespace {

constexpr unsigned kMostDimensions = 5;
// Packed types, which headers before CUDA 12.8 do not name: 16 values of 4 or 6 bits each.
constexpr unsigned k16U4Align8B = 13, k16U4Align16B = 14, k16U6Align16B = 15;
// Bytes of an element, by type; 0: packed.
constexpr std::array<unsigned, 16> kElementBytes = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 0, 0, 0};
// The largest inner dimension of a box, in bytes, by swizzle.
constexpr std::array<unsigned, 7> kSwizzleBytes = {0, 32, 64, 128, 128, 128, 128};

struct tiles {
  unsigned type, rank;
  std::uint64_t address;
  const cuuint64_t *dims, *strides;
  const cuuint32_t *box, *steps;
  unsigned interleave, swizzle, promotion, fill;
};

// What a CUtensorMap holds here.
struct contents {
  std::uint64_t address;
  std::uint32_t type, rank;
  std::array<std::uint64_t, kMostDimensions> dims;
};
static_assert(sizeof(contents) <= sizeof(CUtensorMap));

bool floating(unsigned type) {
  return type >= 6 && type <= 12;
}

bool valid_shape(const tiles &t) {
  const bool wide = t.type == k16U4Align16B || t.type == k16U6Align16B;
  const std::uint64_t unit = wide || t.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  if (t.address % unit != 0) return false;
  for (unsigned i = 0; i < t.rank; ++i) {
    if (t.dims[i] == 0 || t.dims[i] > std::uint64_t{1} << 32) return false;
    if (t.box[i] == 0 || t.box[i] > 256) return false;
    const bool ignored = i == 0 && t.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
    if (!ignored && (t.steps[i] == 0 || t.steps[i] > 8)) return false;
    if (i + 1 == t.rank) break;
    if (t.strides[i] % unit != 0 || t.strides[i] >= std::uint64_t{1} << 40) return false;
  }
  if (wide && (t.dims[0] % 128 != 0 || t.box[0] != 128)) return false;
  return t.type != k16U4Align8B || t.dims[0] % 2 == 0;
}

bool valid_layout(const tiles &t) {
  if (t.interleave > CU_TENSOR_MAP_INTERLEAVE_32B || t.swizzle >= kSwizzleBytes.size())
    return false;
  if (t.promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B) return false;
  if (t.fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA) return false;
  if (t.fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !floating(t.type)) return false;
  if (t.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) {
    if (t.rank < 3 || t.type == k16U6Align16B) return false;
    return t.interleave != CU_TENSOR_MAP_INTERLEAVE_32B || t.swizzle == CU_TENSOR_MAP_SWIZZLE_32B;
  }
  const unsigned inner = t.box[0] * kElementBytes[t.type];
  if (inner % 16 != 0) return false;
  return t.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || inner <= kSwizzleBytes[t.swizzle];
}

bool on_supported_device() {
  return device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                          current_context()->device) >= 9;
}

bool aligned(const void *map) {
  return map != nullptr && reinterpret_cast<std::uintptr_t>(map) % 64 == 0;
}

CUresult encode(CUtensorMap *out, const tiles &t) {
  if (!on_supported_device()) return CUDA_ERROR_NOT_SUPPORTED;
  if (!aligned(out) || t.type >= kElementBytes.size()) return CUDA_ERROR_INVALID_VALUE;
  if (t.rank == 0 || t.rank > kMostDimensions) return CUDA_ERROR_INVALID_VALUE;
  if (t.dims == nullptr || t.box == nullptr || t.steps == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (t.strides == nullptr && t.rank > 1) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_shape(t) || !valid_layout(t)) return CUDA_ERROR_INVALID_VALUE;
  contents c{t.address, t.type, t.rank, {}};
  std::memcpy(c.dims.data(), t.dims, t.rank * sizeof *t.dims);
  std::memset(static_cast<void *>(out), 0, sizeof *out);
  std::memcpy(static_cast<void *>(out), &c, sizeof c);
  return CUDA_SUCCESS;
}

CUresult replace_address(CUtensorMap *map, std::uint64_t address) {
  if (!on_supported_device()) return CUDA_ERROR_NOT_SUPPORTED;
  if (!aligned(map) || address % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(static_cast<void *>(map), &address, sizeof address);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuTensorMapEncodeTiled, 12000, needs_context, 0,
               (CUtensorMap * out, CUtensorMapDataType type, cuuint32_t rank, void *address,
                const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                const cuuint32_t *steps, CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                CUtensorMapFloatOOBfill fill),
               {
                 return encode(
                     out, {static_cast<unsigned>(type), rank,
                           reinterpret_cast<std::uintptr_t>(address), dims, strides, box, steps,
                           static_cast<unsigned>(interleave), static_cast<unsigned>(swizzle),
                           static_cast<unsigned>(promotion), static_cast<unsigned>(fill)});
               })

HOSTCUDA_ENTRY(cuTensorMapReplaceAddress, 12000, needs_context, 0,
               (CUtensorMap * map, void *address),
               { return replace_address(map, reinterpret_cast<std::uintptr_t>(address)); })
