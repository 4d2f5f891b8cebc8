// Virtual memory management: reservations, physical handles and mappings. vmm_access.cpp implements
// access rights.
#include <algorithm>
#include <cstring>

#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/host_limits.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/memory_state.h"
#include "hostcuda/src/memory/vmm_handles.h"
#include "hostcuda/src/memory/vmm_props.h"
#include "hostcuda/src/memory/vmm_rules.h"

namespace hostcuda {
namespace {

// Whether nothing is mapped in a range. Sets *next to the first mapping behind it.
bool is_unmapped(CUdeviceptr at, std::size_t bytes, mapping_iterator *next) {
  memory_registry &b = the_memory();
  const auto end = b.mappings.end();
  // Programs map page after page: the newest mapping is likely to be the one before.
  auto before = b.newest_mapping;
  *next = before == end || before == std::prev(end) ? end : std::next(before);
  if (before == end || before->first >= at || (*next != end && (*next)->first < at)) {
    *next = first_from(b.mappings, at);
    before = *next == b.mappings.begin() ? end : std::prev(*next);
  }
  return (before == end || before->first + before->second.bytes <= at) &&
         (*next == end || (*next)->first >= at + bytes);
}

bool are_mappings(CUdeviceptr at, std::size_t bytes, mapping_iterator *first) {
  return whole_mappings(at, bytes, first, [](CUdeviceptr, const mapping &) {});
}

CUresult unmap(CUdeviceptr at, std::size_t bytes) {
  if (!sane_range(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  memory_registry &b = the_memory();
  dead_memory dead;
  mapping_iterator first;
  {
    std::shared_lock<std::shared_mutex> look(b.mutex);
    if (!are_mappings(at, bytes, &first)) return CUDA_ERROR_INVALID_VALUE;
  }
  range_goes_away(at, bytes, "cuMemUnmap", false);
  exclusive lock(b.mutex);
  do {
    if (!are_mappings(at, bytes, &first)) return CUDA_ERROR_INVALID_VALUE;
  } while (wait_for_pins(lock, at, bytes));
  if (!unmap_range(as_pointer(at), bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto it = first;
  for (; it != b.mappings.end() && it->first < at + bytes; ++it) {
    if (it->second.access != 0) --b.accessible_mappings;
    if (!it->second.present) settle_mapping();
    vmm_handle *h = it->second.handle;
    --h->mappings;
    note_unmapped_locked(h->memory, it->first);
    drop_if_unused_locked(h, &dead);
  }
  b.mappings.erase(first, it);
  b.newest_mapping = b.mappings.end();
  // The mappings may span adjacent reservations.
  for (CUdeviceptr p = at; p < at + bytes;) {
    auto r = containing(b.reservations, p);
    const CUdeviceptr until = std::min<CUdeviceptr>(at + bytes, r->first + r->second.bytes);
    r->second.mapped -= until - p;
    p = until;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult allowed_now() {
  if (current_settings().vmm_in_capture) return CUDA_SUCCESS;
  return capture_forbids_unsafe_call() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

bool sane_range(CUdeviceptr at, std::size_t bytes) {
  return bytes != 0 && at % kGranularity == 0 && bytes % kGranularity == 0 && at + bytes > at;
}

void drop_if_unused_locked(vmm_handle *handle, dead_memory *dead) {
  if (handle->held != 0 || handle->mappings != 0) return;
  drop_locked(handle->memory, dead);
  the_memory().handles.erase(*handle);
}

vmm_handle *find_handle_locked(CUmemGenericAllocationHandle value) {
  vmm_handle *const h = the_memory().handles.find(value);
  return h == nullptr || h->held == 0 ? nullptr : h;
}

CUmemGenericAllocationHandle add_handle_locked(physical *memory, const CUmemAllocationProp &prop) {
  vmm_handle &h = the_memory().handles.add(memory);
  h.prop = prop;
  h.held = 1;
  return h.value;
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuMemAddressReserve, 10020, needs_vmm, size,
               (CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr addr,
                unsigned long long flags),
               {
                 if (ptr == nullptr || flags != 0 || size == 0 || size % kHostPage != 0 ||
                     addr % kHostPage != 0 || (alignment & (alignment - 1)) != 0)
                   return CUDA_ERROR_INVALID_VALUE;
                 const size_t cap = current_settings().machine.reservation_cap;
                 if (cap != 0 && size > cap) return CUDA_ERROR_OUT_OF_MEMORY;
                 memory_registry &b = the_memory();
                 exclusive lock(b.mutex);
                 void *at =
                     reserve_range(size, std::max(alignment, kGranularity), as_pointer(addr));
                 if (at == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
                 *ptr = address_of(at);
                 b.reservations[*ptr] = reservation{size, 0};
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemAddressFree, 10020, ignores_sticky | needs_vmm, size,
               (CUdeviceptr ptr, size_t size), {
                 memory_registry &b = the_memory();
                 exclusive lock(b.mutex);
                 const auto it = b.reservations.find(ptr);
                 if (it == b.reservations.end() || it->second.bytes != size ||
                     it->second.mapped != 0)
                   return CUDA_ERROR_INVALID_VALUE;
                 release_range(as_pointer(ptr), size);
                 b.reservations.erase(it);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemCreate, 10020, needs_vmm, size,
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
                 exclusive lock(the_memory().mutex);
                 if (CUresult r =
                         create_physical(lock, location, size, shared ? prop : nullptr, &memory);
                     r != CUDA_SUCCESS)
                   return r;
                 memory->vmm = true;
                 ++the_memory().vmm_allocations;
                 *handle = add_handle_locked(memory, *prop);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemRelease, 10020, ignores_sticky | needs_vmm, 0,
               (CUmemGenericAllocationHandle handle), {
                 dead_memory dead;
                 exclusive lock(the_memory().mutex);
                 vmm_handle *h = find_handle_locked(handle);
                 if (h == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 --h->held;
                 drop_if_unused_locked(h, &dead);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemMap, 10020, needs_vmm, size,
               (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                unsigned long long flags),
               {
                 if (CUresult r = allowed_now(); r != CUDA_SUCCESS) return r;
                 if (flags != 0 || offset != 0 || !sane_range(ptr, size))
                   return CUDA_ERROR_INVALID_VALUE;
                 memory_registry &b = the_memory();
                 exclusive lock(b.mutex);
                 vmm_handle *h = find_handle_locked(handle);
                 if (h == nullptr || size > h->memory->where.bytes) return CUDA_ERROR_INVALID_VALUE;
                 // A part of a handle cannot be mapped.
                 if (size < h->memory->where.bytes) return CUDA_ERROR_NOT_SUPPORTED;
                 const auto r = containing(b.reservations, ptr);
                 if (r == b.reservations.end() || size > r->second.bytes - (ptr - r->first))
                   return CUDA_ERROR_INVALID_VALUE;
                 mapping_iterator next;
                 if (!is_unmapped(ptr, size, &next)) return CUDA_ERROR_INVALID_VALUE;
                 if (!may_map_extent()) return CUDA_ERROR_OUT_OF_MEMORY;
                 owe_mapping();
                 b.newest_mapping = b.mappings.emplace_hint(next, ptr, mapping{size, h, 0, false});
                 ++h->mappings;
                 note_mapped_locked(h->memory, ptr);
                 r->second.mapped += size;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemUnmap, 10020, ignores_sticky | needs_vmm, size, (CUdeviceptr ptr, size_t size),
               {
                 if (CUresult r = allowed_now(); r != CUDA_SUCCESS) return r;
                 return unmap(ptr, size);
               })

HOSTCUDA_ENTRY(cuMemGetAllocationPropertiesFromHandle, 10020, needs_vmm, 0,
               (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle), {
                 if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
                 const vmm_handle *h = find_handle_locked(handle);
                 if (h == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 *prop = h->prop;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemRetainAllocationHandle, 11000, needs_vmm, 0,
               (CUmemGenericAllocationHandle * handle, void *address), {
                 if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 memory_registry &b = the_memory();
                 exclusive lock(b.mutex);
                 const auto it = containing(b.mappings, address_of(address));
                 if (it == b.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
                 ++it->second.handle->held;
                 *handle = it->second.handle->value;
                 return CUDA_SUCCESS;
               })
