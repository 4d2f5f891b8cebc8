// cuMemAdvise, cuMemPrefetchAsync and cuMemRangeGetAttribute(s): bookkeeping, because managed memory
// is host memory here.
#include "hostcuda/src/memory/managed_hints.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/machine.h"

namespace hostcuda {
namespace {

// Values of CUmemLocationType, which the headers of CUDA 12.0 do not have.
constexpr int kAtDevice = 1, kAtHost = 2, kAtHostNuma = 3, kAtHostNumaCurrent = 4;
constexpr int kLastOldRangeAttribute = 4;

struct hint_place {
  int type = 0;  // a CUmemLocationType; 0: none
  int id = 0;
  bool operator==(const hint_place &) const = default;
};

struct range_hints {
  bool read_mostly = false;
  hint_place preferred;
  hint_place prefetched;
  std::uint64_t accessed_by = 0;  // a bit for each device, and for kHostLocation
  bool operator==(const range_hints &) const = default;
};

// The hints of one block: those of each range begin at its key and end at the next one.
using hint_ranges = std::map<CUdeviceptr, range_hints>;

std::map<CUdeviceptr, hint_ranges> &all_hints() {
  static auto *const all = new std::map<CUdeviceptr, hint_ranges>;
  return *all;
}

// Makes a range begin at `at`.
hint_ranges::iterator split_hints(hint_ranges &r, CUdeviceptr at) {
  const auto next = r.lower_bound(at);
  if (next != r.end() && next->first == at) return next;
  return r.emplace_hint(next, at, next == r.begin() ? range_hints{} : std::prev(next)->second);
}

// The pages of [at, at + bytes), if they are in one managed block. Requires the lock.
bool find_pages_locked(CUdeviceptr at, std::size_t bytes, CUdeviceptr *block_at, CUdeviceptr *begin,
                       CUdeviceptr *end) {
  auto &blocks = the_memory().blocks;
  const auto k = containing(blocks, at);
  if (bytes == 0 || k == blocks.end() || k->second.owner != nullptr) return false;
  if (bytes > k->first + k->second.bytes - at) return false;
  *block_at = k->first;
  *begin = at / kHostPage * kHostPage;
  *end = round_up(at + bytes, kHostPage);
  return true;
}

// Changes the hints of a range.
template <class Change>
CUresult change_hints(CUdeviceptr at, std::size_t bytes, Change change) {
  exclusive lock(the_memory().mutex);
  CUdeviceptr block_at = 0, begin = 0, end = 0;
  if (!find_pages_locked(at, bytes, &block_at, &begin, &end)) return CUDA_ERROR_INVALID_VALUE;
  hint_ranges &r = all_hints()[block_at];
  const auto last = split_hints(r, end);
  for (auto it = split_hints(r, begin); it != last; ++it) change(it->second);
  for (auto it = r.begin(); it != r.end();) {  // unites equal neighbours
    const range_hints before = it == r.begin() ? range_hints{} : std::prev(it)->second;
    it = it->second == before ? r.erase(it) : std::next(it);
  }
  return CUDA_SUCCESS;
}

CUresult check_hint_place(hint_place *p) {
  switch (p->type) {
    case kAtDevice:
      if (!valid_device(p->id) ||
          device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, p->id) == 0)
        return CUDA_ERROR_INVALID_DEVICE;
      return CUDA_SUCCESS;
    case kAtHostNumaCurrent:
      *p = {kAtHostNuma, 0};
      return CUDA_SUCCESS;
    case kAtHost:
      p->id = 0;
      return CUDA_SUCCESS;
    case kAtHostNuma:
      return p->id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // the only node
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// The functions before CUDA 12.2 take a device, or the CPU.
hint_place hint_place_of(CUdevice device) {
  return device == CU_DEVICE_CPU ? hint_place{kAtHost, 0} : hint_place{kAtDevice, device};
}
hint_place hint_place_of(const CUmemLocation &l) {
  return {static_cast<int>(l.type), l.id};
}

CUresult advise(CUdeviceptr at, std::size_t bytes, CUmem_advise advice, hint_place where) {
  const bool located = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                       advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                       advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (located) {
    const bool of_access = advice != CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    if (of_access && where.type != kAtDevice && where.type != kAtHost)
      return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult r = check_hint_place(&where); r != CUDA_SUCCESS) return r;
  }
  const int accessor = !located || where.type != kAtDevice ? kHostLocation : where.id;
  const std::uint64_t bit = std::uint64_t{1} << accessor;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      return change_hints(at, bytes, [=](range_hints &h) {
        h.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
      });
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      return change_hints(at, bytes, [=](range_hints &h) { h.preferred = where; });
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      return change_hints(at, bytes, [](range_hints &h) { h.preferred = {}; });
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      return change_hints(at, bytes, [=](range_hints &h) { h.accessed_by |= bit; });
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      return change_hints(at, bytes, [=](range_hints &h) { h.accessed_by &= ~bit; });
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult prefetch(CUdeviceptr at, std::size_t bytes, hint_place where, unsigned flags,
                  CUstream stream) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult r = check_hint_place(&where); r != CUDA_SUCCESS) return r;
  stream_order order;
  if (const CUresult r = order_of(stream, &order); r != CUDA_SUCCESS) return r;
  if (order.capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // there is no such node
  const CUresult bad = change_hints(at, bytes, [=](range_hints &h) { h.prefetched = where; });
  if (bad != CUDA_SUCCESS) return bad;
  operation op{};
  op.what = "cuMemPrefetchAsync";
  op.body = [] { return CUDA_SUCCESS; };
  op.brief = true;
  return enqueue(stream, std::move(op));
}

bool valid_range_size(int attribute, std::size_t bytes) {
  return attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY ? bytes != 0 && bytes % 4 == 0
                                                         : bytes == 4;
}

int as_hint_device(const hint_place &p) {
  return p.type == 0 ? CU_DEVICE_INVALID : p.type == kAtDevice ? p.id : CU_DEVICE_CPU;
}

// What all pages of a range have in common.
range_hints common_hints(const hint_ranges &r, CUdeviceptr begin, CUdeviceptr end) {
  auto it = r.upper_bound(begin);
  range_hints sum = it == r.begin() ? range_hints{} : std::prev(it)->second;
  for (; it != r.end() && it->first < end; ++it) {
    const range_hints &h = it->second;
    sum.read_mostly = sum.read_mostly && h.read_mostly;
    if (!(sum.preferred == h.preferred)) sum.preferred = {};
    if (!(sum.prefetched == h.prefetched)) sum.prefetched = {};
    sum.accessed_by &= h.accessed_by;
  }
  return sum;
}

void write_range_attribute(const range_hints &h, int attribute, int *out, std::size_t bytes) {
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      *out = h.read_mostly ? 1 : 0;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      *out = as_hint_device(h.preferred);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      *out = as_hint_device(h.prefetched);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      std::size_t n = 0;
      for (int i = 0; i <= kHostLocation && n < bytes / 4; ++i)
        if ((h.accessed_by >> i & 1) != 0) out[n++] = i == kHostLocation ? CU_DEVICE_CPU : i;
      std::fill(out + n, out + bytes / 4, CU_DEVICE_INVALID);
      break;
    }
    // The type and the id of the two locations, since CUDA 12.2.
    case 5:
      *out = h.preferred.type;
      break;
    case 6:
      *out = h.preferred.id;
      break;
    case 7:
      *out = h.prefetched.type;
      break;
    default:
      *out = h.prefetched.id;
      break;
  }
}

CUresult range_attributes(void **data, const size_t *sizes, const CUmem_range_attribute *which,
                          std::size_t count, CUdeviceptr at, std::size_t bytes) {
  const int last = current_settings().machine.driver_version < 12020 ? kLastOldRangeAttribute : 8;
  for (std::size_t i = 0; i < count; ++i) {
    const auto attribute = static_cast<int>(which[i]);
    if (data[i] == nullptr || attribute < 1 || attribute > last ||
        !valid_range_size(attribute, sizes[i]))
      return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
  CUdeviceptr block_at = 0, begin = 0, end = 0;
  if (!find_pages_locked(at, bytes, &block_at, &begin, &end)) return CUDA_ERROR_INVALID_VALUE;
  const auto found = all_hints().find(block_at);
  const range_hints h =
      found == all_hints().end() ? range_hints{} : common_hints(found->second, begin, end);
  for (std::size_t i = 0; i < count; ++i)
    write_range_attribute(h, static_cast<int>(which[i]), static_cast<int *>(data[i]), sizes[i]);
  return CUDA_SUCCESS;
}

}  // namespace

void forget_hints_locked(CUdeviceptr at) {
  if (!all_hints().empty()) all_hints().erase(at);
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuMemAdvise, 8000, needs_context, 0,
               (CUdeviceptr at, size_t bytes, CUmem_advise advice, CUdevice device),
               { return advise(at, bytes, advice, hint_place_of(device)); })

HOSTCUDA_ENTRY(cuMemAdvise_v2, 12020, needs_context, 0,
               (CUdeviceptr at, size_t bytes, CUmem_advise advice, CUmemLocation location),
               { return advise(at, bytes, advice, hint_place_of(location)); })

HOSTCUDA_STREAM_ENTRY(cuMemPrefetchAsync, 8000, needs_context, bytes, stream,
                      (CUdeviceptr at, size_t bytes, CUdevice device, CUstream stream),
                      (at, bytes, device, stream),
                      { return prefetch(at, bytes, hint_place_of(device), 0, stream); })

HOSTCUDA_STREAM_ENTRY(cuMemPrefetchAsync_v2, 12020, needs_context, bytes, stream,
                      (CUdeviceptr at, size_t bytes, CUmemLocation location, unsigned flags,
                       CUstream stream),
                      (at, bytes, location, flags, stream),
                      { return prefetch(at, bytes, hint_place_of(location), flags, stream); })

HOSTCUDA_ENTRY(cuMemRangeGetAttribute, 8000, plain, 0,
               (void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr at,
                size_t bytes),
               { return range_attributes(&data, &size, &attribute, 1, at, bytes); })

HOSTCUDA_ENTRY(cuMemRangeGetAttributes, 8000, plain, 0,
               (void **data, size_t *sizes, CUmem_range_attribute *which, size_t count,
                CUdeviceptr at, size_t bytes),
               {
                 if (data == nullptr || sizes == nullptr || which == nullptr || count == 0)
                   return CUDA_ERROR_INVALID_VALUE;
                 return range_attributes(data, sizes, which, count, at, bytes);
               })
