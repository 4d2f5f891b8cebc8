// cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree and related queries.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/arena.h"
#include "hostcuda/src/memory/graph_memory.h"
#include "hostcuda/src/memory/managed_hints.h"
#include "hostcuda/src/memory/memory_parts.h"
#include "hostcuda/src/memory/memory_state.h"
#include "hostcuda/src/shared_machine.h"

namespace hostcuda {
namespace {

// The arena of a device for cuMemAlloc. All contexts of the device share it.
arena *device_arena(int location) {
  static arena *const arenas = [] {
    auto *all = new arena[kMaxDevices + 1];
    for (int i = 0; i <= kMaxDevices; ++i) all[i].location = i;
    return all;
  }();
  return arenas + location;
}

CUresult allocate(CUdeviceptr *out, std::size_t bytes) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return add_block(bytes, false, out);
}

CUresult free_block(CUdeviceptr at) {
  if (at == 0) return CUDA_SUCCESS;
  if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  block k;
  {
    std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
    const auto it = the_memory().blocks.find(at);
    if (it == the_memory().blocks.end() || it->second.freeing || it->second.imported ||
        it->second.owned)
      return CUDA_ERROR_INVALID_VALUE;
    k = it->second;
  }
  wait_for_device(k.location);
  range_goes_away(at, k.bytes, "cuMemFree", true);
  if (k.graph == graph_block::no) return remove_block(at);
  if (!set_graph_memory(at, false)) return CUDA_ERROR_INVALID_VALUE;  // no launch has allocated it
  count_graph_memory(k.location, k.bytes, false);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult add_block(std::size_t bytes, bool owned, CUdeviceptr *out) {
  block proto;
  proto.ctx = current_context();
  proto.owned = owned;
  return arena_allocate(device_arena(proto.ctx->device), bytes, proto, out);
}

CUresult remove_block(CUdeviceptr at) {
  dead_memory dead;
  memory_registry &b = the_memory();
  exclusive lock(b.mutex);
  auto it = b.blocks.end();
  do {
    it = b.blocks.find(at);
    if (it == b.blocks.end() || it->second.freeing) return CUDA_ERROR_INVALID_VALUE;
  } while (wait_for_pins(lock, at, it->second.bytes));
  if (it->second.owner == nullptr) {
    munmap(as_pointer(at), it->second.footprint);
    forget_hints_locked(at);
    b.blocks.erase(it);
  } else {
    arena_free_locked(it, &dead);
  }
  return CUDA_SUCCESS;
}

CUresult end_owned_block(CUdeviceptr at, std::size_t bytes, CUdevice device, const char *what) {
  wait_for_device(device);
  range_goes_away(at, bytes, what, true);
  return remove_block(at);
}

CUresult create_variable(const std::vector<std::byte> &initial, std::size_t bytes,
                         CUdeviceptr *out) {
  if (const CUresult r = add_block(bytes, true, out); r != CUDA_SUCCESS) return r;
  if (unbacked()) return CUDA_SUCCESS;
  void *const host = resolve(current_context()->device, *out, bytes, true);
  if (initial.empty()) {
    std::memset(host, 0, bytes);
  } else {
    std::memcpy(host, initial.data(), bytes);
  }
  return CUDA_SUCCESS;
}

void destroy_variable(CUdeviceptr at, std::size_t bytes, CUdevice device) {
  end_owned_block(at, bytes, device, "cuModuleUnload");
}

void release_block_memory(context *ctx) {
  std::vector<CUdeviceptr> mine;
  {
    std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
    for (const auto &[at, k] : the_memory().blocks)
      if (k.ctx == ctx) mine.push_back(at);
  }
  for (const CUdeviceptr at : mine) remove_block(at);
}

void reset_blocks() {
  memory_registry &b = the_memory();
  for (const auto &[at, k] : b.blocks) {
    if (k.owner != nullptr) continue;
    munmap(as_pointer(at), k.footprint);
    forget_hints_locked(at);
  }
  b.blocks.clear();
  for (const auto &[at, c] : b.chunks) release_range(as_pointer(at), c.bytes);
  for (const auto &[at, c] : b.chunks) delete c.memory;
  b.chunks.clear();
  for (int i = 0; i <= kMaxDevices; ++i) {
    *device_arena(i) = arena{};
    device_arena(i)->location = i;
  }
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuMemGetInfo_v2, 3020, needs_context, 0, (size_t * free_bytes, size_t *total), {
  if (free_bytes == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_context()->device;
  std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
  *total = current_settings().machine.device_memory;
  const size_t taken =
      the_memory().used[device] + the_memory().occupied[device] + bytes_of_others(device);
  *free_bytes = *total > taken ? *total - taken : 0;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuMemAlloc_v2, 3020, needs_context, bytes, (CUdeviceptr * out, size_t bytes),
               { return allocate(out, bytes); })

HOSTCUDA_ENTRY(cuMemAllocPitch_v2, 3020, needs_context, width *height,
               (CUdeviceptr * out, size_t *pitch, size_t width, size_t height, unsigned element), {
                 if (pitch == nullptr || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
                 if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
                 const size_t row = round_up(width, 512);
                 if (row < width || row > (size_t{1} << 46) / height)
                   return CUDA_ERROR_OUT_OF_MEMORY;
                 if (CUresult r = allocate(out, row * height); r != CUDA_SUCCESS) return r;
                 *pitch = row;
                 return CUDA_SUCCESS;
               })

// The address tells the context, so none needs to be current. hostcuda/docs/open_behaviour.md
HOSTCUDA_ENTRY(cuMemFree_v2, 3020, ignores_sticky, 0, (CUdeviceptr at), { return free_block(at); })

HOSTCUDA_ENTRY(cuMemAllocManaged, 6000, needs_context, bytes,
               (CUdeviceptr * out, size_t bytes, unsigned flags), {
                 if (out == nullptr || bytes == 0 || (flags != 1 && flags != 2))
                   return CUDA_ERROR_INVALID_VALUE;
                 if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
                 const size_t footprint = round_up(bytes, kHostPage);
                 if (footprint < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
                 void *at = mmap(nullptr, footprint, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
                 if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
                 exclusive lock(the_memory().mutex);
                 block k;
                 k.bytes = bytes;
                 k.footprint = footprint;
                 k.ctx = current_context();
                 k.location = k.ctx->device;
                 k.id = the_memory().next_id++;
                 *out = address_of(at);
                 the_memory().blocks.emplace(*out, k);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemGetAddressRange_v2, 3020, plain, 0,
               (CUdeviceptr * base, size_t *bytes, CUdeviceptr at), {
                 memory_registry &b = the_memory();
                 std::shared_lock<std::shared_mutex> lock(b.mutex);
                 CUdeviceptr start = 0;
                 size_t size = 0;
                 const auto found_in = [&](auto &ranges) {
                   const auto it = containing(ranges, at);
                   if (it == ranges.end()) return false;
                   start = it->first;
                   size = it->second.bytes;
                   return true;
                 };
                 // The mapping, not its reservation.
                 if (!found_in(b.mappings) && !found_in(b.blocks) && !found_in(b.host))
                   return CUDA_ERROR_NOT_FOUND;
                 if (base != nullptr) *base = start;
                 if (bytes != nullptr) *bytes = size;
                 return CUDA_SUCCESS;
               })
