// Memory pools: create, destroy, trim, attributes, access, and the current pool of a device.
#include "hostcuda/src/memory/pool.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/machine.h"

namespace hostcuda {
namespace {

std::atomic<bool> may_trim{false};  // a pool may exceed its release threshold

CUresult set_attribute(memory_pool *p, int attribute, const void *value) {
  if (attribute >= 1 && attribute <= 3) {
    p->reuse[attribute - 1] = *static_cast<const int *>(value);
    return CUDA_SUCCESS;
  }
  const auto *wide = static_cast<const cuuint64_t *>(value);
  if (attribute == 4) {
    p->release_threshold = *wide;
  } else if (attribute == 6 && *wide == 0) {  // the high watermarks can only be reset
    p->a.reserved_high = p->a.reserved;
  } else if (attribute == 8 && *wide == 0) {
    p->a.used_high = p->a.used;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult get_attribute(const memory_pool *p, int attribute, void *value) {
  const arena &a = p->a;
  const cuuint64_t from_4[] = {p->release_threshold, a.reserved, a.reserved_high, a.used,
                               a.used_high};
  if (attribute >= 1 && attribute <= 3) {
    *static_cast<int *>(value) = p->reuse[attribute - 1];
  } else if (attribute >= 4 && attribute <= 8) {
    *static_cast<cuuint64_t *>(value) = from_4[attribute - 4];
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// CU_MEM_ALLOCATION_TYPE_MANAGED, which headers before CUDA 13 lack.
constexpr int kManagedType = 2;

std::size_t limit_of([[maybe_unused]] const CUmemPoolProps &props) {
#if CUDA_VERSION >= 12020
  constexpr std::size_t kMost = std::size_t{1} << 46;  // as arena_allocate()
  if (props.maxSize <= kMost) return round_up(props.maxSize, kGranularity);
#endif
  return 0;
}

}  // namespace

memory_pool *add_pool_locked(CUdevice device) {
  auto *p = new memory_pool;
  p->a.location = device;
  p->a.pool = p;
  p->a.keeps_empty = true;
  p->access = with_access(0, device, 3);
  pools().all.insert(p);
  return p;
}

CUmemoryPool handle_of_pool(memory_pool *p) {
  return reinterpret_cast<CUmemoryPool>(p);
}

bool pool_is_shareable(const memory_pool *pool) {
  return pool->a.file != nullptr;
}

pool_registry &pools() {
  static pool_registry *const p = new pool_registry;
  return *p;
}

memory_pool *standard_pool_locked(CUdevice device) {
  memory_pool *&p = pools().standard[device];
  if (p == nullptr) {
    p = add_pool_locked(device);
    p->is_default = true;
  }
  return p;
}

memory_pool *find_pool_locked(CUmemoryPool handle) {
  auto *p = reinterpret_cast<memory_pool *>(handle);
  return pools().all.count(p) != 0 && !p->destroyed && !p->hidden ? p : nullptr;
}

void delete_if_done_locked(memory_pool *p, dead_memory *dead) {
  if (!p->destroyed || p->a.used != 0 || p->a.frees_queued != 0) return;
  arena_trim_locked(&p->a, 0, dead);
  pools().all.erase(p);
  delete p;
}

access_bits pool_access(const memory_pool *pool) {
  return pool->access;
}

void trim_every_pool(int location) {
  dead_memory dead;
  exclusive lock(the_memory().mutex);
  for (memory_pool *p : pools().all)
    if (p->a.location == location) arena_trim_locked(&p->a, 0, &dead);
}

void pool_has_an_empty_chunk() {
  may_trim = true;
}

void memory_synchronised() {
  if (!may_trim.exchange(false)) return;
  dead_memory dead;
  exclusive lock(the_memory().mutex);
  for (memory_pool *p : pools().all) arena_trim_locked(&p->a, p->release_threshold, &dead);
}

void reset_pools() {
  for (memory_pool *p : pools().all) delete p;
  pools() = pool_registry{};
  forget_parked();
  may_trim = false;
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuMemPoolCreate, 11020, needs_pools, 0,
               (CUmemoryPool * out, const CUmemPoolProps *props), {
                 if (out == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 if (static_cast<int>(props->allocType) == kManagedType)
                   return CUDA_ERROR_NOT_SUPPORTED;
                 if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
                   return CUDA_ERROR_INVALID_VALUE;
                 if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
                   return CUDA_ERROR_NOT_SUPPORTED;
                 if (!valid_device(props->location.id)) return CUDA_ERROR_INVALID_DEVICE;
                 std::shared_ptr<pool_file> file;
                 if (props->handleTypes != 0) {
                   if (props->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
                       current_settings().machine.refuses_fd_pools)
                     return CUDA_ERROR_NOT_SUPPORTED;
                   file = make_pool_file(props->location.id);
                   if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
                 }
                 exclusive lock(the_memory().mutex);
                 memory_pool *const p = add_pool_locked(props->location.id);
                 p->a.file = std::move(file);
                 p->a.limit = limit_of(*props);
                 *out = handle_of_pool(p);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemPoolDestroy, 11020, ignores_sticky | needs_pools, 0, (CUmemoryPool handle), {
  dead_memory dead;
  exclusive lock(the_memory().mutex);
  memory_pool *p = find_pool_locked(handle);
  if (p == nullptr || p->is_default) return CUDA_ERROR_INVALID_VALUE;
  for (memory_pool *&current : pools().current)
    if (current == p) current = nullptr;  // the default pool becomes current
  p->destroyed = true;
  delete_if_done_locked(p, &dead);
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuMemPoolTrimTo, 11020, needs_pools, 0, (CUmemoryPool handle, size_t keep), {
  dead_memory dead;
  exclusive lock(the_memory().mutex);
  memory_pool *p = find_pool_locked(handle);
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  arena_trim_locked(&p->a, keep, &dead);
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuMemPoolSetAttribute, 11020, needs_pools, 0,
               (CUmemoryPool handle, CUmemPool_attribute attribute, void *value), {
                 exclusive lock(the_memory().mutex);
                 memory_pool *p = find_pool_locked(handle);
                 if (p == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 return set_attribute(p, static_cast<int>(attribute), value);
               })

HOSTCUDA_ENTRY(cuMemPoolGetAttribute, 11020, needs_pools, 0,
               (CUmemoryPool handle, CUmemPool_attribute attribute, void *value), {
                 exclusive lock(the_memory().mutex);
                 const memory_pool *p = find_pool_locked(handle);
                 if (p == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 return get_attribute(p, static_cast<int>(attribute), value);
               })

HOSTCUDA_ENTRY(cuMemPoolSetAccess, 11020, needs_pools, 0,
               (CUmemoryPool handle, const CUmemAccessDesc *map, size_t count), {
                 exclusive lock(the_memory().mutex);
                 memory_pool *p = find_pool_locked(handle);
                 if (p == nullptr || map == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
                 access_bits next = p->access;
                 for (size_t i = 0; i < count; ++i) {
                   if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
                     return CUDA_ERROR_INVALID_VALUE;
                   if (!valid_device(map[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
                   const auto flags = static_cast<unsigned>(map[i].flags);
                   if (flags != 0 && !can_access_peer(map[i].location.id, p->a.location))
                     return CUDA_ERROR_INVALID_DEVICE;
                   // Pools have no read-only access, and the owner's access cannot be removed.
                   if (flags != 0 && flags != 3) return CUDA_ERROR_INVALID_VALUE;
                   if (map[i].location.id == p->a.location && flags == 0)
                     return CUDA_ERROR_INVALID_DEVICE;
                   next = with_access(next, map[i].location.id, flags);
                 }
                 p->access = next;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemPoolGetAccess, 11020, needs_pools, 0,
               (CUmemAccess_flags * flags, CUmemoryPool handle, CUmemLocation *location), {
                 exclusive lock(the_memory().mutex);
                 const memory_pool *p = find_pool_locked(handle);
                 if (p == nullptr || flags == nullptr || location == nullptr ||
                     location->type != CU_MEM_LOCATION_TYPE_DEVICE)
                   return CUDA_ERROR_INVALID_VALUE;
                 if (!valid_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
                 *flags = static_cast<CUmemAccess_flags>(access_of(p->access, location->id));
                 return CUDA_SUCCESS;
               })
