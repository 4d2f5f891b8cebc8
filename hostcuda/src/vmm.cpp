// Virtual memory management: reservations, physical handles, mappings, access.
#include <algorithm>
#include <cstring>

#include "device.h"
#include "entry.h"
#include "execution.h"
#include "machine.h"
#include "memory_state.h"
#include "vmm_handles.h"
#include "vmm_props.h"

namespace hostcuda {
namespace {

using exclusive = std::unique_lock<std::shared_mutex>;
using mapping_iterator = std::map<CUdeviceptr, mapping>::iterator;

void *as_pointer(CUdeviceptr at) {
  return reinterpret_cast<void *>(at);
}

CUresult vmm_here() {
  return current_settings().machine.has_vmm ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

// Creating, mapping and granting are refused under a GLOBAL capture: no source says what a driver
// does, and refusing is the answer under which no program can come to depend on it.
CUresult allowed_now() {
  if (CUresult r = vmm_here(); r != CUDA_SUCCESS) return r;
  return capture_forbids_unsafe_call() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

// Whether [at, at + bytes) is made of whole mappings without a hole; *first is the first of them.
bool whole_mappings(CUdeviceptr at, std::size_t bytes, mapping_iterator *first) {
  memory_books &b = books();
  auto it = b.mappings.find(at);
  if (it == b.mappings.end()) return false;
  *first = it;
  // Stepping past the last mapping of all climbs the whole tree, so no loop here takes that step.
  for (CUdeviceptr reached = at;;) {
    if (it == b.mappings.end() || it->first != reached) return false;
    reached += it->second.bytes;
    if (reached >= at + bytes) return reached == at + bytes;
    ++it;
  }
}

// Calls change(address, mapping) for each mapping of a range that whole_mappings() found whole.
template <class Change>
void each_mapping(mapping_iterator first, CUdeviceptr end, Change change) {
  for (auto it = first;; ++it) {
    change(it->first, it->second);
    if (it->first + it->second.bytes >= end) return;
  }
}

bool sane_range(CUdeviceptr at, std::size_t bytes) {
  return bytes != 0 && at % kGranularity == 0 && bytes % kGranularity == 0 && at + bytes > at;
}

// One mprotect: adjacent mappings whose rights become the same.
struct protect_run {
  CUdeviceptr at;
  std::size_t bytes;
  unsigned before;
  unsigned after;
};

unsigned union_of(access_bits bits) {
  unsigned all = 0;
  for (int i = 0; i <= kMaxDevices; ++i) all |= access_of(bits, i);
  return all;
}

access_bits granted(access_bits bits, const CUmemAccessDesc *desc, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const bool device = desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    bits = with_access(bits, device ? desc[i].location.id : kHostLocation,
                       static_cast<unsigned>(desc[i].flags));
  }
  return bits;
}

CUresult check_descriptors(const CUmemAccessDesc *desc, std::size_t count) {
  if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned flags = static_cast<unsigned>(desc[i].flags);
    if (flags != 0 && flags != 1 && flags != 3) return CUDA_ERROR_INVALID_VALUE;
    const int type = static_cast<int>(desc[i].location.type);
    if (type == 1 && !valid_device(desc[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (type < 1 || type > 3) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

bool names_host(const CUmemAccessDesc *desc, std::size_t count) {
  return std::any_of(desc, desc + count, [](const CUmemAccessDesc &d) {
    return d.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  });
}

// What a SetAccess would do; found under the lock, before anything is changed.
struct access_plan {
  mapping_iterator first;
  std::vector<protect_run> runs;
  std::int64_t newly_accessible = 0;
  bool takes_away = false;
};

CUresult plan_access(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc *desc,
                     std::size_t count, access_plan *plan) {
  *plan = access_plan{};
  if (!whole_mappings(at, bytes, &plan->first)) return CUDA_ERROR_INVALID_VALUE;
  const bool host = names_host(desc, count);
  CUresult refused = CUDA_SUCCESS;
  each_mapping(plan->first, at + bytes, [&](CUdeviceptr begin, const mapping &m) {
    if (refused != CUDA_SUCCESS) return;
    if (host && m.handle->memory->location != kHostLocation) {
      refused = CUDA_ERROR_INVALID_VALUE;
      return;
    }
    if (current_settings().machine.fails_rdma_access &&
        m.handle->prop.allocFlags.gpuDirectRDMACapable != 0) {
      refused = CUDA_ERROR_UNKNOWN;
      return;
    }
    const access_bits next = granted(m.access, desc, count);
    if ((m.access & ~next) != 0) plan->takes_away = true;
    plan->newly_accessible += (next != 0 ? 1 : 0) - (m.access != 0 ? 1 : 0);
    const unsigned before = union_of(m.access);
    const unsigned after = union_of(next);
    if (before == after) return;
    if (!plan->runs.empty() && plan->runs.back().at + plan->runs.back().bytes == begin &&
        plan->runs.back().before == before && plan->runs.back().after == after) {
      plan->runs.back().bytes += m.bytes;
    } else {
      plan->runs.push_back({begin, m.bytes, before, after});
    }
  });
  if (refused != CUDA_SUCCESS) return refused;
  const auto total =
      static_cast<std::int64_t>(books().accessible_mappings) + plan->newly_accessible;
  if (plan->newly_accessible > 0 &&
      total > static_cast<std::int64_t>(current_settings().machine.mapping_ceiling))
    return CUDA_ERROR_OUT_OF_MEMORY;
  return CUDA_SUCCESS;
}

// All runs or none. The host refuses when it has no mapping left to split.
bool protect_all(const std::vector<protect_run> &runs) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (protect_range(as_pointer(runs[i].at), runs[i].bytes, runs[i].after)) continue;
    for (std::size_t k = 0; k < i; ++k)
      protect_range(as_pointer(runs[k].at), runs[k].bytes, runs[k].before);
    return false;
  }
  return true;
}

CUresult set_access(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc *desc,
                    std::size_t count) {
  if (CUresult r = check_descriptors(desc, count); r != CUDA_SUCCESS) return r;
  if (!sane_range(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  memory_books &b = books();
  access_plan plan;
  exclusive lock(b.mutex);
  if (CUresult r = plan_access(at, bytes, desc, count, &plan); r != CUDA_SUCCESS) return r;
  if (plan.takes_away) {
    lock.unlock();
    range_goes_away(at, bytes, "cuMemSetAccess", false);
    lock.lock();
    do {
      if (CUresult r = plan_access(at, bytes, desc, count, &plan); r != CUDA_SUCCESS) return r;
    } while (wait_for_pins(lock, at, bytes));
  }
  if (!protect_all(plan.runs)) return CUDA_ERROR_OUT_OF_MEMORY;
  each_mapping(plan.first, at + bytes,
               [&](CUdeviceptr, mapping &m) { m.access = granted(m.access, desc, count); });
  b.accessible_mappings += static_cast<std::uint64_t>(plan.newly_accessible);
  lock.unlock();
  for (const protect_run &r : plan.runs)
    if (r.before == 0) populate_range(as_pointer(r.at), r.bytes);
  return CUDA_SUCCESS;
}

CUresult unmap(CUdeviceptr at, std::size_t bytes) {
  if (!sane_range(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  memory_books &b = books();
  std::vector<physical *> dead;
  {
    mapping_iterator first;
    {
      std::shared_lock<std::shared_mutex> look(b.mutex);
      if (!whole_mappings(at, bytes, &first)) return CUDA_ERROR_INVALID_VALUE;
    }
    range_goes_away(at, bytes, "cuMemUnmap", false);
    exclusive lock(b.mutex);
    do {
      if (!whole_mappings(at, bytes, &first)) return CUDA_ERROR_INVALID_VALUE;
    } while (wait_for_pins(lock, at, bytes));
    if (!unmap_range(as_pointer(at), bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    auto it = first;
    for (; it != b.mappings.end() && it->first < at + bytes; ++it) {
      if (it->second.access != 0) --b.accessible_mappings;
      vmm_handle *h = it->second.handle;
      --h->mappings;
      note_unmapped_locked(h->memory, it->first);
      drop_if_unused_locked(h, &dead);
    }
    b.mappings.erase(first, it);
    // Whole mappings may span reservations that happen to be neighbours.
    for (CUdeviceptr p = at; p < at + bytes;) {
      auto r = containing(b.reservations, p);
      const CUdeviceptr until = std::min<CUdeviceptr>(at + bytes, r->first + r->second.bytes);
      r->second.mapped -= until - p;
      p = until;
    }
  }
  dispose(dead);
  return CUDA_SUCCESS;
}

}  // namespace

void drop_if_unused_locked(vmm_handle *handle, std::vector<physical *> *dead) {
  if (handle->held != 0 || handle->mappings != 0) return;
  drop_locked(handle->memory, dead);
  books().handles.erase(handle->value);
}

vmm_handle *find_handle_locked(CUmemGenericAllocationHandle value) {
  const auto it = books().handles.find(value);
  return it == books().handles.end() || it->second->held == 0 ? nullptr : it->second.get();
}

CUmemGenericAllocationHandle add_handle_locked(physical *memory, const CUmemAllocationProp &prop) {
  memory_books &b = books();
  auto h = std::make_unique<vmm_handle>();
  h->value = b.next_handle++;
  h->memory = memory;
  h->prop = prop;
  h->held = 1;
  const auto value = h->value;
  b.handles.emplace(value, std::move(h));
  return value;
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuMemAddressReserve, 10020, plain, size,
               (CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr addr,
                unsigned long long flags),
               {
                 if (CUresult r = vmm_here(); r != CUDA_SUCCESS) return r;
                 if (ptr == nullptr || flags != 0 || size == 0 || size % kHostPage != 0 ||
                     addr % kHostPage != 0 || (alignment & (alignment - 1)) != 0)
                   return CUDA_ERROR_INVALID_VALUE;
                 const size_t cap = current_settings().machine.reservation_cap;
                 if (cap != 0 && size > cap) return CUDA_ERROR_OUT_OF_MEMORY;
                 memory_books &b = books();
                 exclusive lock(b.mutex);
                 void *at =
                     reserve_range(size, std::max(alignment, kGranularity), as_pointer(addr));
                 if (at == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
                 *ptr = reinterpret_cast<CUdeviceptr>(at);
                 b.reservations[*ptr] = reservation{size, 0};
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemAddressFree, 10020, ignores_sticky, size, (CUdeviceptr ptr, size_t size), {
  if (CUresult r = vmm_here(); r != CUDA_SUCCESS) return r;
  memory_books &b = books();
  exclusive lock(b.mutex);
  const auto it = b.reservations.find(ptr);
  if (it == b.reservations.end() || it->second.bytes != size || it->second.mapped != 0)
    return CUDA_ERROR_INVALID_VALUE;
  release_range(as_pointer(ptr), size);
  b.reservations.erase(it);
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuMemCreate, 10020, plain, size,
               (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,
                unsigned long long flags),
               {
                 if (CUresult r = allowed_now(); r != CUDA_SUCCESS) return r;
                 if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
                 int location = 0;
                 if (CUresult r = check_properties(prop, &location); r != CUDA_SUCCESS) return r;
                 if (size == 0 || size % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
                 const bool shared = prop->requestedHandleTypes != 0;
                 physical *memory = nullptr;
                 if (CUresult r = create_physical(
                         location, size, shared ? share_name(*prop).c_str() : nullptr, &memory);
                     r != CUDA_SUCCESS)
                   return r;
                 exclusive lock(books().mutex);
                 memory->vmm = true;
                 ++books().vmm_allocations;
                 *handle = add_handle_locked(memory, *prop);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemRelease, 10020, ignores_sticky, 0, (CUmemGenericAllocationHandle handle), {
  if (CUresult r = vmm_here(); r != CUDA_SUCCESS) return r;
  std::vector<physical *> dead;
  {
    exclusive lock(books().mutex);
    vmm_handle *h = find_handle_locked(handle);
    if (h == nullptr) return CUDA_ERROR_INVALID_VALUE;
    --h->held;
    drop_if_unused_locked(h, &dead);
  }
  dispose(dead);
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuMemMap, 10020, plain, size,
               (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                unsigned long long flags),
               {
                 if (CUresult r = allowed_now(); r != CUDA_SUCCESS) return r;
                 if (flags != 0 || offset != 0 || !sane_range(ptr, size))
                   return CUDA_ERROR_INVALID_VALUE;
                 memory_books &b = books();
                 exclusive lock(b.mutex);
                 vmm_handle *h = find_handle_locked(handle);
                 if (h == nullptr || size > h->memory->where.bytes) return CUDA_ERROR_INVALID_VALUE;
                 // One handle is one unit of mapping.
                 if (size < h->memory->where.bytes) return CUDA_ERROR_NOT_SUPPORTED;
                 const auto r = containing(b.reservations, ptr);
                 if (r == b.reservations.end() || size > r->second.bytes - (ptr - r->first))
                   return CUDA_ERROR_INVALID_VALUE;
                 const auto next = b.mappings.lower_bound(ptr);
                 if (next != b.mappings.end() && next->first < ptr + size)
                   return CUDA_ERROR_INVALID_VALUE;
                 if (next != b.mappings.begin()) {
                   const auto before = std::prev(next);
                   if (before->first + before->second.bytes > ptr) return CUDA_ERROR_INVALID_VALUE;
                 }
                 if (!map_extent(as_pointer(ptr), h->memory->where))
                   return CUDA_ERROR_OUT_OF_MEMORY;
                 b.mappings.emplace_hint(next, ptr, mapping{size, h, 0});
                 ++h->mappings;
                 note_mapped_locked(h->memory, ptr);
                 r->second.mapped += size;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemUnmap, 10020, ignores_sticky, size, (CUdeviceptr ptr, size_t size), {
  if (CUresult r = allowed_now(); r != CUDA_SUCCESS) return r;
  return unmap(ptr, size);
})

HOSTCUDA_ENTRY(cuMemSetAccess, 10020, plain, size,
               (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count), {
                 if (CUresult r = allowed_now(); r != CUDA_SUCCESS) return r;
                 return set_access(ptr, size, desc, count);
               })

HOSTCUDA_ENTRY(cuMemGetAccess, 10020, plain, 0,
               (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr), {
                 if (CUresult r = vmm_here(); r != CUDA_SUCCESS) return r;
                 if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 const int type = static_cast<int>(location->type);
                 if (type < 1 || type > 3) return CUDA_ERROR_INVALID_VALUE;
                 if (type == 1 && !valid_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
                 memory_books &b = books();
                 std::shared_lock<std::shared_mutex> lock(b.mutex);
                 const auto it = containing(b.mappings, ptr);
                 if (it == b.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
                 *flags = access_of(it->second.access, type == 1 ? location->id : kHostLocation);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemGetAllocationPropertiesFromHandle, 10020, plain, 0,
               (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle), {
                 if (CUresult r = vmm_here(); r != CUDA_SUCCESS) return r;
                 if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 std::shared_lock<std::shared_mutex> lock(books().mutex);
                 const vmm_handle *h = find_handle_locked(handle);
                 if (h == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 *prop = h->prop;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemRetainAllocationHandle, 11000, plain, 0,
               (CUmemGenericAllocationHandle * handle, void *address), {
                 if (CUresult r = vmm_here(); r != CUDA_SUCCESS) return r;
                 if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 memory_books &b = books();
                 exclusive lock(b.mutex);
                 const auto it = containing(b.mappings, reinterpret_cast<CUdeviceptr>(address));
                 if (it == b.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
                 ++it->second.handle->held;
                 *handle = it->second.handle->value;
                 return CUDA_SUCCESS;
               })
