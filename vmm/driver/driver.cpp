// Driver calls for devices, contexts, plain memory and copies. Virtual memory is in memory.cpp,
// streams and events are in streams.cpp.
#include <cstring>

#include "stillmap/vmm/base/cuda_errors.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/driver/calls.h"

namespace stillmap {

using enum driver_call;

tl::unexpected<error> driver_access::absent(driver_call call, const request &asked) {
  return tl::unexpected<error>(error{make_error_code(errc::not_supported), name_of(call),
                                     "this driver lacks the function", asked.value, 0, asked.unit});
}

tl::unexpected<error> driver_access::translate(const driver &d, driver_call call,
                                               const request &asked, CUresult r) {
  const std::error_code code(static_cast<int>(r), cuda_category());
  error e{code, name_of(call), "", asked.value, 0, asked.unit};
  if (r == CUDA_ERROR_OUT_OF_MEMORY && asked.takes_memory) {
    if (const auto now = d.memory_info_now()) e.limit = now->free.bytes();
  }
  return tl::unexpected<error>(e);
}

namespace {

// The driver accesses a host pointer without a check; a null one would end the process.
status check_host_pointer(driver_call call, const void *host, std::size_t bytes) {
  if (host != nullptr || bytes == 0) return {};
  return tl::unexpected<error>(error{make_error_code(errc::invalid_argument), name_of(call),
                                     "the host pointer is null", bytes, 0, error_unit::bytes});
}

}  // namespace

// ---- the driver and its devices ----

status driver::initialise() const {
  {
    const lock_guard lock(import_mutex_);
    imports_.clear();
    import_count_.store(0, std::memory_order_release);
  }
  return driver_access::make<Init>(*this, {}, 0u);
}

result<int> driver::device_count() const {
  return driver_access::get<DeviceGetCount, int>(*this, {});
}

result<int> driver::device_handle(int ordinal) const {
  return driver_access::get<DeviceGet, CUdevice, int>(*this, {}, ordinal);
}

result<std::string> driver::device_name(int device) const {
  char name[256] = {};
  STILLMAP_RETURN_IF_ERROR(driver_access::make<DeviceGetName>(
      *this, {}, name, static_cast<int>(sizeof name - 1), CUdevice{device}));
  return with_host_memory(name_of(DeviceGetName), [&]() -> result<std::string> { return name; });
}

result<int> driver::device_attribute(int attribute, int device) const {
  return driver_access::get<DeviceGetAttribute, int>(
      *this, {static_cast<std::uint64_t>(attribute), false, error_unit::none},
      static_cast<CUdevice_attribute>(attribute), CUdevice{device});
}

result<physical_size> driver::device_total_memory(int device) const {
  return driver_access::get<DeviceTotalMem, std::size_t, physical_size>(*this, {},
                                                                        CUdevice{device});
}

result<std::array<unsigned char, 16>> driver::device_uuid(int device) const {
  CUuuid uuid = {};
  return driver_access::make<DeviceGetUuid>(*this, {}, &uuid, CUdevice{device}).map([&] {
    std::array<unsigned char, 16> bytes{};
    static_assert(sizeof uuid.bytes == sizeof bytes);
    std::memcpy(bytes.data(), uuid.bytes, bytes.size());
    return bytes;
  });
}

result<bool> driver::can_access_peer(int device, int peer) const {
  return driver_access::get<DeviceCanAccessPeer, int, bool>(*this, {}, CUdevice{device},
                                                            CUdevice{peer});
}

// ---- contexts ----

result<context_handle> driver::retain_primary_context(int device) const {
  return driver_access::get<DevicePrimaryCtxRetain, CUcontext>(*this, {}, CUdevice{device});
}

status driver::release_primary_context(int device) const {
  return driver_access::make<DevicePrimaryCtxRelease>(*this, {}, CUdevice{device});
}

result<context_handle> driver::current_context() const {
  return driver_access::get<CtxGetCurrent, CUcontext>(*this, {});
}

status driver::push_context(context_handle context) const {
  return driver_access::make<CtxPushCurrent>(*this, {}, context);
}

status driver::pop_context() const {
  CUcontext popped = nullptr;
  return driver_access::make<CtxPopCurrent>(*this, {}, &popped);
}

status driver::synchronize_context() const {
  return driver_access::make<CtxSynchronize>(*this, {});
}

// ---- plain memory ----

result<memory_info> driver::memory_info_now() const {
  std::size_t free = 0, total = 0;
  return driver_access::make<MemGetInfo>(*this, {}, &free, &total).map([&] {
    return memory_info{physical_size(free), physical_size(total)};
  });
}

result<device_address> driver::allocate(std::size_t bytes) const {
  return driver_access::get<MemAlloc, CUdeviceptr, device_address>(*this, {bytes, true}, bytes);
}

status driver::free(device_address at) const {
  return driver_access::make<MemFree>(*this, {}, raw(at));
}

result<device_address> driver::allocate_async(std::size_t bytes, stream_handle stream) const {
  return driver_access::get<MemAllocAsync, CUdeviceptr, device_address>(*this, {bytes, true}, bytes,
                                                                        stream);
}

status driver::free_async(device_address at, stream_handle stream) const {
  return driver_access::make<MemFreeAsync>(*this, {}, raw(at), stream);
}

result<void *> driver::allocate_host(std::size_t bytes) const {
  return driver_access::get<MemHostAlloc, void *>(*this, {bytes}, bytes, CU_MEMHOSTALLOC_PORTABLE);
}

status driver::free_host(void *at) const {
  return driver_access::make<MemFreeHost>(*this, {}, at);
}

// ---- copies; bytes count once the driver has accepted them ----

status driver::copy_to_device(device_address to, const void *from, std::size_t bytes) const {
  STILLMAP_RETURN_IF_ERROR(check_host_pointer(MemcpyHtoD, from, bytes));
  return driver_access::make<MemcpyHtoD>(*this, {bytes}, raw(to), from, bytes).map([&] {
    driver_access::moved_to_device(*this, bytes);
  });
}

status driver::copy_to_host(void *to, device_address from, std::size_t bytes) const {
  STILLMAP_RETURN_IF_ERROR(check_host_pointer(MemcpyDtoH, to, bytes));
  return driver_access::make<MemcpyDtoH>(*this, {bytes}, to, raw(from), bytes).map([&] {
    driver_access::moved_to_host(*this, bytes);
  });
}

status driver::copy_on_device(device_address to, device_address from, std::size_t bytes) const {
  return driver_access::make<MemcpyDtoD>(*this, {bytes}, raw(to), raw(from), bytes).map([&] {
    driver_access::moved_on_device(*this, bytes);
  });
}

status driver::copy_to_device_async(device_address to, const void *from, std::size_t bytes,
                                    stream_handle stream) const {
  STILLMAP_RETURN_IF_ERROR(check_host_pointer(MemcpyHtoDAsync, from, bytes));
  return driver_access::make<MemcpyHtoDAsync>(*this, {bytes}, raw(to), from, bytes, stream)
      .map([&] { driver_access::moved_to_device(*this, bytes); });
}

status driver::copy_to_host_async(void *to, device_address from, std::size_t bytes,
                                  stream_handle stream) const {
  STILLMAP_RETURN_IF_ERROR(check_host_pointer(MemcpyDtoHAsync, to, bytes));
  return driver_access::make<MemcpyDtoHAsync>(*this, {bytes}, to, raw(from), bytes, stream)
      .map([&] { driver_access::moved_to_host(*this, bytes); });
}

status driver::copy_on_device_async(device_address to, device_address from, std::size_t bytes,
                                    stream_handle stream) const {
  return driver_access::make<MemcpyDtoDAsync>(*this, {bytes}, raw(to), raw(from), bytes, stream)
      .map([&] { driver_access::moved_on_device(*this, bytes); });
}

status driver::set_bytes_async(device_address at, unsigned char value, std::size_t bytes,
                               stream_handle stream) const {
  return driver_access::make<MemsetD8Async>(*this, {bytes}, raw(at), value, bytes, stream);
}

}  // namespace stillmap
