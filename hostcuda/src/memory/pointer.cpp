// Pointer attributes (cuPointerGetAttribute) and related queries.
#include <cstring>
#include <mutex>

#include "hostcuda/src/context.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/arena.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {
namespace {

// Registry information about one address.
struct address_facts {
  bool vmm = false;  // in a reservation
  std::map<CUdeviceptr, reservation>::const_iterator reserved;
  const mapping *mapped = nullptr;
  CUdeviceptr mapped_at = 0;
  const block *allocated = nullptr;
  const host_range *host = nullptr;
  CUdeviceptr start = 0;  // start of the reservation, block or host range
  std::size_t bytes = 0;

  bool known() const { return vmm || allocated != nullptr || host != nullptr; }
  bool managed() const { return allocated != nullptr && allocated->owner == nullptr; }
};

address_facts look_locked(CUdeviceptr at) {
  memory_registry &b = the_memory();
  address_facts f;
  if (const auto r = containing(b.reservations, at); r != b.reservations.end()) {
    f.vmm = true;
    f.reserved = r;
    f.start = r->first;
    f.bytes = r->second.bytes;
    if (const auto m = containing(b.mappings, at); m != b.mappings.end()) {
      f.mapped = &m->second;
      f.mapped_at = m->first;
    }
  } else if (const auto k = containing(b.blocks, at); k != b.blocks.end()) {
    f.allocated = &k->second;
    f.start = k->first;
    f.bytes = k->second.bytes;
  } else if (const auto h = containing(b.host, at); h != b.host.end()) {
    f.host = &h->second;
    f.start = h->first;
    f.bytes = h->second.bytes;
  }
  return f;
}

template <class T>
CUresult put(void *out, T value) {
  std::memcpy(out, &value, sizeof value);
  return CUDA_SUCCESS;
}

// Size of an attribute's value in bytes; 0 for an unknown attribute.
std::size_t size_of(int attribute) {
  switch (attribute) {
    case 1:
    case 3:
    case 4:
    case 7:
    case 11:
    case 12:
    case 14:
    case 17:
    case 18:
    case 19:
    case 20:
      return 8;
    case 5:
      return sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS);
    case 2:
    case 9:
      return 4;
    case 6:
    case 8:
    case 10:
    case 13:
    case 15:
    case 16:
    case 21:
      return attribute == 16 ? 4 : 1;
    default:
      return 0;
  }
}

CUresult vmm_attribute(const address_facts &f, int attribute, CUdeviceptr at, void *out) {
  const bool on_host = f.mapped != nullptr && f.mapped->handle->memory->location == kHostLocation;
  const CUmemAllocationProp *prop = f.mapped != nullptr ? &f.mapped->handle->prop : nullptr;
  switch (attribute) {
    case 11:
      return put(out, f.start);
    case 12:
      return put(out, f.bytes);
    case 13:
      return put(out, static_cast<char>(f.mapped != nullptr));
    case 10:
      return put(out, static_cast<char>(0));
    case 6:
      return put(out, static_cast<char>(0));
    case 8:
      return put(out, static_cast<char>(0));
    default:
      break;
  }
  if (f.mapped == nullptr) return CUDA_ERROR_INVALID_VALUE;  // reserved but not mapped
  switch (attribute) {
    case 1:
      return put<CUcontext>(out, nullptr);  // belongs to no context
    case 2:
      return put<unsigned>(out, on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case 3:
      return put(out, at);
    case 4:
      return on_host ? put(out, at) : CUDA_ERROR_INVALID_VALUE;
    case 7:
    case 20:
      return put<unsigned long long>(out, f.mapped->handle->memory->id);
    case 9:
      return put<int>(out, on_host ? 0 : f.mapped->handle->memory->location);
    case 14:
      return put<unsigned long long>(out, prop->requestedHandleTypes);
    case 15:
      return put<char>(out, prop->allocFlags.gpuDirectRDMACapable != 0);
    case 16: {
      const context *ctx = current_context();
      return put<unsigned>(out, ctx != nullptr ? access_of(f.mapped->access, ctx->device) : 0);
    }
    case 17:
      return put<CUmemoryPool>(out, nullptr);
    case 18:
      return put(out, f.mapped->bytes);
    case 19:
      return put(out, f.mapped_at);
    case 21:
      return put(out, static_cast<char>(0));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult plain_attribute(const address_facts &f, int attribute, CUdeviceptr at, void *out) {
  const bool host = f.host != nullptr;
  const block *k = f.allocated;
  context *ctx = host ? f.host->ctx : k->ctx;
  const bool host_readable = host || f.managed();
  const bool pooled = k != nullptr && k->pool != nullptr;
  switch (attribute) {
    case 1:
      return put(out, ctx != nullptr ? handle_of(ctx) : CUcontext{});
    case 2:
      return put<unsigned>(out, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case 3:
      return put(out, at);
    case 4:
      return host_readable ? put(out, at) : CUDA_ERROR_INVALID_VALUE;
    case 6:
      return put(out, static_cast<char>(0));
    case 7:
    case 20:
      return put<unsigned long long>(out, host ? f.host->id : k->id);
    case 8:
      return put<char>(out, f.managed());
    case 9:
      return put<int>(out, host ? (ctx != nullptr ? ctx->device : 0) : k->location);
    case 10:
      return put(out, static_cast<char>(0));  // cuIpcGetMemHandle is not supported
    case 11:
    case 19:
      return put(out, f.start);
    case 12:
    case 18:
      return put(out, f.bytes);
    case 13:
      return put(out, static_cast<char>(1));
    case 14:
      return put<unsigned long long>(out, 0);
    case 15:
      return put<char>(out, !host && !f.managed() && !pooled);
    case 16:
      return put<unsigned>(out, 3);
    case 17:
      return put(out, pooled ? reinterpret_cast<CUmemoryPool>(k->pool) : CUmemoryPool{});
    case 21:
      return put(out, static_cast<char>(0));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult attribute_locked(const address_facts &f, int attribute, CUdeviceptr at, void *out) {
  if (!f.known()) return CUDA_ERROR_INVALID_VALUE;
  return f.vmm ? vmm_attribute(f, attribute, at, out) : plain_attribute(f, attribute, at, out);
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
                 if (!f.known()) return CUDA_ERROR_INVALID_VALUE;
                 return f.vmm ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
               })

// Legacy IPC is not supported. VMM memory is an invalid argument, as on a GPU.
HOSTCUDA_ENTRY(cuIpcGetMemHandle, 4010, needs_context, 0, (CUipcMemHandle * out, CUdeviceptr at), {
  std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
  const address_facts f = look_locked(at);
  if (out == nullptr || !f.known() || f.vmm) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_NOT_SUPPORTED;
})
HOSTCUDA_ENTRY(cuIpcOpenMemHandle, 4010, needs_context, 0,
               (CUdeviceptr *, CUipcMemHandle, unsigned), { return CUDA_ERROR_NOT_SUPPORTED; })
HOSTCUDA_ENTRY(cuIpcOpenMemHandle_v2, 11000, needs_context, 0,
               (CUdeviceptr *, CUipcMemHandle, unsigned), { return CUDA_ERROR_NOT_SUPPORTED; })
HOSTCUDA_ENTRY(cuIpcCloseMemHandle, 4010, needs_context, 0, (CUdeviceptr),
               { return CUDA_ERROR_NOT_SUPPORTED; })
