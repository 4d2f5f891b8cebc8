// Pointer attributes (cuPointerGetAttribute) and related queries.
#include <cstring>
#include <iterator>
#include <mutex>

#include "hostcuda/src/context.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/arena.h"
#include "hostcuda/src/memory/ipc_registry.h"
#include "hostcuda/src/memory/memory_state.h"
#include "hostcuda/src/memory/pool.h"

namespace hostcuda {
namespace {

// Registry information about one address, as the attributes report it.
struct address_facts {
  bool known = false;     // reserved, allocated or registered
  bool reserved = false;  // in a reservation
  bool mapped = false;    // accessible memory: mapped, allocated or registered
  bool host = false;      // host memory
  bool host_readable = false;
  bool managed = false;
  context *ctx = nullptr;
  int device = 0;
  std::uint64_t id = 0;
  CUdeviceptr start = 0;  // of the reservation, block or host range
  std::size_t bytes = 0;
  CUdeviceptr mapping_start = 0;  // of the mapping; else as start
  std::size_t mapping_bytes = 0;
  unsigned long long handle_types = 0;
  bool legacy_ipc = false;  // cuIpcGetMemHandle works
  bool rdma = false;
  unsigned access = 3;  // of the current context
  memory_pool *pool = nullptr;
};

// Describes the mapping in a reservation. Requires the lock.
void look_at_mapping_locked(CUdeviceptr at, address_facts *f) {
  auto &mappings = the_memory().mappings;
  const auto it = containing(mappings, at);
  f->mapped = it != mappings.end();
  if (!f->mapped) return;
  const mapping &m = it->second;
  const physical &memory = *m.handle->memory;
  const CUmemAllocationProp &prop = m.handle->prop;
  f->host = f->host_readable = memory.location == kHostLocation;
  f->device = f->host ? 0 : memory.location;
  f->id = memory.id;
  f->mapping_start = it->first;
  f->mapping_bytes = m.bytes;
  f->handle_types = prop.requestedHandleTypes;
  f->rdma = prop.allocFlags.gpuDirectRDMACapable != 0;
  const context *const ctx = current_context();
  f->access = ctx != nullptr ? access_of(m.access, ctx->device) : 0;
}

address_facts look_locked(CUdeviceptr at) {
  memory_registry &b = the_memory();
  address_facts f;
  const auto find_in = [&](auto &ranges) {
    const auto it = containing(ranges, at);
    f.known = f.mapped = it != ranges.end();
    if (!f.known) return it;
    f.start = f.mapping_start = it->first;
    f.bytes = f.mapping_bytes = it->second.bytes;
    return it;
  };
  if (find_in(b.reservations); f.known) {
    f.reserved = true;
    look_at_mapping_locked(at, &f);
  } else if (const auto k = find_in(b.blocks); f.known) {
    const block &found = k->second;
    f.managed = f.host_readable = found.owner == nullptr;
    f.ctx = found.ctx;
    f.device = found.location;
    f.id = found.id;
    f.pool = found.pool;
    f.rdma = !f.managed && f.pool == nullptr;
    f.legacy_ipc = legacy_ipc_capable(found);
    if (f.pool != nullptr && pool_is_shareable(f.pool))
      f.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  } else if (const auto h = find_in(b.host); f.known) {
    f.host = f.host_readable = true;
    f.ctx = h->second.ctx;
    f.device = f.ctx != nullptr ? f.ctx->device : 0;
    f.id = h->second.id;
  }
  return f;
}

template <class T>
CUresult put(void *out, T value) {
  std::memcpy(out, &value, sizeof value);
  return CUDA_SUCCESS;
}

// Size of an attribute's value in bytes, by number; 0 for an unknown attribute.
std::size_t size_of(int attribute) {
  static constexpr std::size_t sizes[] = {
      0, 8, 4, 8, 8, sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS), 1, 8, 1, 4, 1, 8, 8, 1, 8, 1, 4,
      8, 8, 8, 8, 1};
  return attribute > 0 && attribute < static_cast<int>(std::size(sizes)) ? sizes[attribute] : 0;
}

CUresult attribute_locked(const address_facts &f, int attribute, CUdeviceptr at, void *out) {
  if (!f.known) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case 6:
      return put(out, static_cast<char>(0));
    case 10:
      return put<char>(out, f.legacy_ipc);
    case 8:
      return put<char>(out, f.managed);
    case 11:
      return put(out, f.start);
    case 12:
      return put(out, f.bytes);
    case 13:
      return put<char>(out, f.mapped);
    default:
      break;
  }
  if (!f.mapped) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case 1:
      return put(out, f.ctx != nullptr ? handle_of(f.ctx) : CUcontext{});
    case 2:
      return put<unsigned>(out, f.host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case 3:
      return put(out, at);
    case 4:
      return f.host_readable ? put(out, at) : CUDA_ERROR_INVALID_VALUE;
    case 7:
    case 20:
      return put<unsigned long long>(out, f.id);
    case 9:
      return put(out, f.device);
    case 14:
      return put(out, f.handle_types);
    case 15:
      return put<char>(out, f.rdma);
    case 16:
      return put(out, f.access);
    case 17:
      return put(out, reinterpret_cast<CUmemoryPool>(f.pool));
    case 18:
      return put(out, f.mapping_bytes);
    case 19:
      return put(out, f.mapping_start);
    case 21:
      return put(out, static_cast<char>(0));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuPointerGetAttribute, 4000, plain, 0,
               (void *data, CUpointer_attribute attribute, CUdeviceptr at), {
                 if (data == nullptr || size_of(static_cast<int>(attribute)) == 0)
                   return CUDA_ERROR_INVALID_VALUE;
                 std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
                 return attribute_locked(look_locked(at), static_cast<int>(attribute), at, data);
               })

HOSTCUDA_ENTRY(cuPointerGetAttributes, 7000, plain, 0,
               (unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr at), {
                 if (count == 0 || attributes == nullptr || data == nullptr)
                   return CUDA_ERROR_INVALID_VALUE;
                 for (unsigned i = 0; i < count; ++i)
                   if (data[i] == nullptr || size_of(static_cast<int>(attributes[i])) == 0)
                     return CUDA_ERROR_INVALID_VALUE;
                 std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
                 const address_facts f = look_locked(at);
                 // Unlike cuPointerGetAttribute, returns zero for attributes without a value.
                 for (unsigned i = 0; i < count; ++i) {
                   const int attribute = static_cast<int>(attributes[i]);
                   if (attribute_locked(f, attribute, at, data[i]) != CUDA_SUCCESS)
                     std::memset(data[i], 0, size_of(attribute));
                 }
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuPointerSetAttribute, 6000, plain, 0,
               (const void *value, CUpointer_attribute attribute, CUdeviceptr at), {
                 if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
                   return CUDA_ERROR_INVALID_VALUE;
                 std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
                 const address_facts f = look_locked(at);
                 if (!f.known) return CUDA_ERROR_INVALID_VALUE;
                 return f.reserved ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
               })
