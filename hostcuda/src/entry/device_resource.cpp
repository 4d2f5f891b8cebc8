// cuDeviceGetDevResource, cuDevSmResourceSplitByCount and cuDevResourceGenerateDesc.
#include "hostcuda/src/entry/device_resource.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/machine.h"

#if CUDA_VERSION >= 12040
namespace hostcuda {
namespace {

// Where a resource comes from, in the padding that programs do not touch.
struct resource_origin {
  std::uint32_t mark = 0;
  CUdevice device = 0;
  std::uint64_t split = 0;  // 0: it is whole, and may be split
  std::uint32_t part = 0;   // in the split; the remainder follows the last part
};
constexpr std::uint32_t kResourceMark = 0x5253434Du;
static_assert(sizeof(resource_origin) <= sizeof(CUdevResource::_internal_padding));

resource_origin origin_of(const CUdevResource &r) {
  resource_origin o;
  std::memcpy(&o, r._internal_padding, sizeof o);
  return o;
}

// The least size of a part, and what its size is a multiple of. <cuda.h> lists them by compute
// capability, but not those of the flags. hostcuda/docs/open_behaviour.md
struct part_rule {
  unsigned least;
  unsigned multiple;
};

part_rule rule_of(unsigned flags) {
  const int major = current_settings().machine.compute_major;
  if (flags == CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) return {2, 2};
  if (flags == CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE) return {16, 16};
  if (major >= 9) return {8, 8};
  return major >= 8 ? part_rule{4, 2} : part_rule{2, 2};
}

CUdevResource make_resource(unsigned multiprocessors, const resource_origin &origin) {
  CUdevResource r{};
  if (multiprocessors == 0) return r;  // of the type INVALID
  const part_rule rule = rule_of(0);
  r.type = CU_DEV_RESOURCE_TYPE_SM;
  // smCount, minSmPartitionSize and smCoscheduledAlignment. The headers of CUDA 12 have only the first.
  const unsigned sm[] = {multiprocessors, rule.least, rule.multiple};
  std::memcpy(r._oversize, sm, sizeof sm);
  std::memcpy(r._internal_padding, &origin, sizeof origin);
  return r;
}

bool valid_split_flags(unsigned flags) {
  if (flags == 0 || flags == CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) return true;
  return flags == CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE &&
         current_settings().machine.compute_major >= 9;
}

CUresult split_resource(CUdevResource *result, unsigned *count, const CUdevResource *input,
                        CUdevResource *remaining, unsigned flags, unsigned least) {
  if (count == nullptr || input == nullptr || !valid_split_flags(flags))
    return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  const resource_origin from = origin_of(*input);
  if (from.mark != kResourceMark || from.split != 0)
    return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  const unsigned all = input->sm.smCount;
  if (least > all || (result != nullptr && *count == 0)) return CUDA_ERROR_INVALID_VALUE;
  const part_rule rule = rule_of(flags);
  const unsigned each =
      (std::max(least, rule.least) + rule.multiple - 1) / rule.multiple * rule.multiple;
  const unsigned possible = all / each;
  if (result == nullptr) {
    *count = possible;
    return CUDA_SUCCESS;
  }
  if (possible == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  static std::atomic<std::uint64_t> splits{0};
  resource_origin part{kResourceMark, from.device, ++splits, 0};
  *count = std::min(*count, possible);
  for (; part.part < *count; ++part.part) result[part.part] = make_resource(each, part);
  if (remaining != nullptr) *remaining = make_resource(all - *count * each, part);
  return CUDA_SUCCESS;
}

struct resource_descriptor {
  CUdevice device = 0;
  unsigned multiprocessors = 0;
};

struct descriptor_table {
  std::mutex mutex;
  std::map<CUdevResourceDesc, resource_descriptor> known;
  std::uintptr_t last = 0x2000;
};

descriptor_table &resource_descriptors() {
  static descriptor_table *const t = new descriptor_table;
  return *t;
}

CUresult describe_resources(CUdevResourceDesc *out, const CUdevResource *resources,
                            unsigned count) {
  if (out == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const resource_origin first = origin_of(resources[0]);
  resource_descriptor d{first.device, 0};
  std::vector<std::uint32_t> parts;
  for (unsigned i = 0; i < count; ++i) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    const resource_origin o = origin_of(resources[i]);
    const bool together = o.device == first.device && o.split == first.split;
    const bool fresh = std::find(parts.begin(), parts.end(), o.part) == parts.end();
    if (o.mark != kResourceMark || !together || !fresh)
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    parts.push_back(o.part);
    d.multiprocessors += resources[i].sm.smCount;
  }
  descriptor_table &t = resource_descriptors();
  std::lock_guard<std::mutex> lock(t.mutex);
  t.last += 16;
  *out = reinterpret_cast<CUdevResourceDesc>(t.last);
  t.known.emplace(*out, d);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult get_resource(CUdevice device, const green_context *green, CUdevResourceType type,
                      CUdevResource *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  const auto all = static_cast<unsigned>(current_settings().machine.multiprocessors);
  *out =
      make_resource(green != nullptr ? green->multiprocessors : all, {kResourceMark, device, 0, 0});
  return CUDA_SUCCESS;
}

bool find_resource_descriptor(CUdevResourceDesc handle, CUdevice *device,
                              unsigned *multiprocessors) {
  descriptor_table &t = resource_descriptors();
  std::lock_guard<std::mutex> lock(t.mutex);
  const auto it = t.known.find(handle);
  if (it == t.known.end()) return false;
  *device = it->second.device;
  *multiprocessors = it->second.multiprocessors;
  return true;
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuDeviceGetDevResource, 12040, ignores_sticky, 0,
               (CUdevice device, CUdevResource *out, CUdevResourceType type), {
                 if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
                 return get_resource(device, nullptr, type, out);
               })
HOSTCUDA_ENTRY(cuDevSmResourceSplitByCount, 12040, ignores_sticky, 0,
               (CUdevResource * result, unsigned *count, const CUdevResource *input,
                CUdevResource *remaining, unsigned flags, unsigned least),
               { return split_resource(result, count, input, remaining, flags, least); })
HOSTCUDA_ENTRY(cuDevResourceGenerateDesc, 12040, ignores_sticky, 0,
               (CUdevResourceDesc * out, CUdevResource *resources, unsigned count),
               { return describe_resources(out, resources, count); })
#else
using namespace hostcuda;
HOSTCUDA_NOT_PROVIDED(cuDeviceGetDevResource, 12040)
HOSTCUDA_NOT_PROVIDED(cuDevSmResourceSplitByCount, 12040)
HOSTCUDA_NOT_PROVIDED(cuDevResourceGenerateDesc, 12040)
#endif
