// Pinned host memory: cuMemHostAlloc, and cuMemHostRegister for memory of the program.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/memory/arena.h"
#include "hostcuda/src/memory/memory_parts.h"
#include "hostcuda/src/memory/memory_state.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace hostcuda {
namespace {

constexpr unsigned kAllocFlags = 0x7;     // portable, device map, write combined
constexpr unsigned kRegisterFlags = 0xF;  // portable, device map, IO memory, read only

// Populates pinned memory, with huge pages if the host has them.
bool make_present(void *at, std::size_t bytes) {
  if (bytes >= kGranularity) (void)madvise(at, bytes, MADV_HUGEPAGE);
  if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;  // EINVAL: kernels before 5.14
  for (std::size_t i = 0; i < bytes; i += kHostPage) static_cast<volatile char *>(at)[i] = 0;
  return true;
}

CUresult allocate(void **out, std::size_t bytes, unsigned flags) {
  if (out == nullptr || bytes == 0 || (flags & ~kAllocFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::size_t size = round_up(bytes, kHostPage);
  if (size < bytes || !host_can_back(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool present = current_settings().backed && !current_settings().lazy;
  if (present && !make_present(at, size)) {
    munmap(at, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  exclusive lock(the_memory().mutex);
  the_memory().host.emplace(
      address_of(at), host_range{bytes, flags, false, current_context(), the_memory().next_id++});
  *out = at;
  return CUDA_SUCCESS;
}

// Unmaps memory unless it is the program's.
void unmap(CUdeviceptr at, const host_range &range) {
  if (!range.registered) munmap(as_pointer(at), round_up(range.bytes, kHostPage));
}

CUresult remove(CUdeviceptr at, bool registered, CUresult absent) {
  memory_registry &b = the_memory();
  exclusive lock(b.mutex);
  auto it = b.host.end();
  do {
    it = b.host.find(at);
    if (it == b.host.end() || it->second.registered != registered) return absent;
  } while (wait_for_pins(lock, at, it->second.bytes));
  const auto gone = b.host.extract(it);
  lock.unlock();
  // Before the addresses can be those of device memory.
  forget_accesses(at, gone.mapped().bytes);
  unmap(at, gone.mapped());
  return CUDA_SUCCESS;
}

// Frees or unregisters a range. The address tells the context, so none needs to be current
// (hostcuda/docs/open_behaviour.md). `absent` is the error if there is no such range.
CUresult give_back(CUdeviceptr at, bool registered, CUresult absent) {
  if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CUdevice device = 0;
  {
    std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
    const auto it = the_memory().host.find(at);
    if (it == the_memory().host.end() || it->second.ctx == nullptr) return absent;
    device = it->second.ctx->device;
  }
  wait_for_device(device);  // as cuMemFree: queued copies may still access it
  return remove(at, registered, absent);
}

CUresult register_range(void *p, std::size_t bytes, unsigned flags) {
  if (p == nullptr || bytes == 0 || (flags & ~kRegisterFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  memory_registry &b = the_memory();
  exclusive lock(b.mutex);
  const CUdeviceptr at = address_of(p);
  if (at + bytes < at) return CUDA_ERROR_INVALID_VALUE;
  const auto next = b.host.lower_bound(at);
  if (containing(b.host, at) != b.host.end() || (next != b.host.end() && next->first < at + bytes))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (known_locked(at)) return CUDA_ERROR_INVALID_VALUE;
  b.host.emplace(at, host_range{bytes, flags, true, current_context(), b.next_id++});
  return CUDA_SUCCESS;
}

}  // namespace

void release_host_memory(context *ctx) {
  memory_registry &b = the_memory();
  exclusive lock(b.mutex);
  std::erase_if(b.host, [ctx](const auto &entry) {
    if (entry.second.ctx != ctx) return false;
    unmap(entry.first, entry.second);
    return true;
  });
}

void reset_host_memory() {
  memory_registry &b = the_memory();
  for (const auto &[at, range] : b.host) unmap(at, range);
  b.host.clear();
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuMemAllocHost_v2, 3020, needs_context, bytes, (void **out, size_t bytes),
               { return allocate(out, bytes, 0); })

HOSTCUDA_ENTRY(cuMemHostAlloc, 2020, needs_context, bytes,
               (void **out, size_t bytes, unsigned flags), { return allocate(out, bytes, flags); })

HOSTCUDA_ENTRY(cuMemFreeHost, 2000, ignores_sticky, 0, (void *p), {
  return p == nullptr ? CUDA_SUCCESS : give_back(address_of(p), false, CUDA_ERROR_INVALID_VALUE);
})

HOSTCUDA_ENTRY_AND_V2(cuMemHostRegister, 4000, 6050, needs_context, bytes,
                      (void *p, size_t bytes, unsigned flags), (p, bytes, flags),
                      { return register_range(p, bytes, flags); })

HOSTCUDA_ENTRY(cuMemHostUnregister, 4000, ignores_sticky, 0, (void *p), {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return give_back(address_of(p), true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
})

HOSTCUDA_ENTRY(cuMemHostGetDevicePointer_v2, 3020, needs_context, 0,
               (CUdeviceptr * out, void *p, unsigned flags), {
                 if (out == nullptr || p == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
                 std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
                 if (containing(the_memory().host, address_of(p)) == the_memory().host.end())
                   return CUDA_ERROR_INVALID_VALUE;
                 *out = address_of(p);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemHostGetFlags, 2030, needs_context, 0, (unsigned *flags, void *p), {
  if (flags == nullptr || p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
  const auto it = containing(the_memory().host, address_of(p));
  if (it == the_memory().host.end()) return CUDA_ERROR_INVALID_VALUE;
  *flags = it->second.flags | 2U;  // unified addressing maps all pinned memory
  return CUDA_SUCCESS;
})
