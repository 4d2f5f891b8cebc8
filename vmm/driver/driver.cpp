// Driver calls for devices, contexts, plain memory and copies. Virtual memory is in memory.cpp,
// streams and events are in streams.cpp.
#include <cstring>

#include "stillmap/vmm/driver/calls.h"
#include "stillmap/vmm/driver/cuda_errors.h"

namespace stillmap {

using access = driver_access;

tl::unexpected<error> driver_access::absent(const what &w) {
  return make_error(errc::not_supported, name_of(w.call), "this driver lacks the function", w.value,
                    0, w.unit);
}

status driver_access::translate(const driver &d, const what &w, CUresult r) {
  if (r == CUDA_SUCCESS) return {};
  error e{std::error_code(static_cast<int>(r), cuda_category()),
          name_of(w.call),
          "",
          w.value,
          0,
          w.unit};
  if (r == CUDA_ERROR_OUT_OF_MEMORY && w.takes_memory) {
    if (const auto now = d.memory_info_now()) e.limit = now->free.bytes();
  }
  return tl::unexpected<error>(e);
}

namespace {

// The driver reads through a host pointer without asking; a null one would end the process.
bool readable(const void *host, std::size_t bytes) {
  return host != nullptr || bytes == 0;
}

tl::unexpected<error> null_pointer(driver_call call, std::size_t bytes) {
  return make_error(errc::invalid_argument, name_of(call), "the host pointer is null", bytes, 0,
                    error_unit::bytes);
}

}  // namespace

// ---- the driver and its devices ----

status driver::initialise() const {
  {
    const std::lock_guard lock(import_mutex_);
    imports_.clear();
    import_count_.store(0, std::memory_order_release);
  }
  return access::make(*this, {driver_call::Init}, table().Init, 0u);
}

result<int> driver::device_count() const {
  int count = 0;
  return access::make(*this, {driver_call::DeviceGetCount}, table().DeviceGetCount, &count)
      .map([&] { return count; });
}

result<int> driver::device_handle(int ordinal) const {
  CUdevice device = 0;
  return access::make(*this, {driver_call::DeviceGet}, table().DeviceGet, &device, ordinal)
      .map([&] { return static_cast<int>(device); });
}

result<std::string> driver::device_name(int device) const {
  char name[256] = {};
  return access::make(*this, {driver_call::DeviceGetName}, table().DeviceGetName, name,
                      static_cast<int>(sizeof name - 1), CUdevice{device})
      .map([&] { return std::string(name); });
}

result<int> driver::device_attribute(int attribute, int device) const {
  int value = 0;
  return access::make(*this,
                      {driver_call::DeviceGetAttribute, static_cast<std::uint64_t>(attribute),
                       false, error_unit::none},
                      table().DeviceGetAttribute, &value,
                      static_cast<CUdevice_attribute>(attribute), CUdevice{device})
      .map([&] { return value; });
}

result<physical_size> driver::device_total_memory(int device) const {
  std::size_t bytes = 0;
  return access::make(*this, {driver_call::DeviceTotalMem}, table().DeviceTotalMem, &bytes,
                      CUdevice{device})
      .map([&] { return physical_size(bytes); });
}

result<std::array<unsigned char, 16>> driver::device_uuid(int device) const {
  CUuuid uuid = {};
  return access::make(*this, {driver_call::DeviceGetUuid}, table().DeviceGetUuid, &uuid,
                      CUdevice{device})
      .map([&] {
        std::array<unsigned char, 16> bytes{};
        static_assert(sizeof uuid.bytes == sizeof bytes);
        std::memcpy(bytes.data(), uuid.bytes, bytes.size());
        return bytes;
      });
}

result<bool> driver::can_access_peer(int device, int peer) const {
  int can = 0;
  return access::make(*this, {driver_call::DeviceCanAccessPeer}, table().DeviceCanAccessPeer, &can,
                      CUdevice{device}, CUdevice{peer})
      .map([&] { return can != 0; });
}

// ---- contexts ----

result<context_handle> driver::retain_primary_context(int device) const {
  CUcontext context = nullptr;
  return access::make(*this, {driver_call::DevicePrimaryCtxRetain}, table().DevicePrimaryCtxRetain,
                      &context, CUdevice{device})
      .map([&] { return context; });
}

status driver::release_primary_context(int device) const {
  return access::make(*this, {driver_call::DevicePrimaryCtxRelease},
                      table().DevicePrimaryCtxRelease, CUdevice{device});
}

result<context_handle> driver::current_context() const {
  CUcontext context = nullptr;
  return access::make(*this, {driver_call::CtxGetCurrent}, table().CtxGetCurrent, &context)
      .map([&] { return context; });
}

status driver::push_context(context_handle context) const {
  return access::make(*this, {driver_call::CtxPushCurrent}, table().CtxPushCurrent, context);
}

status driver::pop_context() const {
  CUcontext popped = nullptr;
  return access::make(*this, {driver_call::CtxPopCurrent}, table().CtxPopCurrent, &popped);
}

status driver::synchronize_context() const {
  return access::make(*this, {driver_call::CtxSynchronize}, table().CtxSynchronize);
}

// ---- plain memory ----

result<memory_info> driver::memory_info_now() const {
  std::size_t free = 0, total = 0;
  return access::make(*this, {driver_call::MemGetInfo}, table().MemGetInfo, &free, &total).map([&] {
    return memory_info{physical_size(free), physical_size(total)};
  });
}

result<device_address> driver::allocate(std::size_t bytes) const {
  CUdeviceptr at = 0;
  return access::make(*this, {driver_call::MemAlloc, bytes, true}, table().MemAlloc, &at, bytes)
      .map([&] { return device_address(at); });
}

status driver::free(device_address at) const {
  return access::make(*this, {driver_call::MemFree}, table().MemFree, CUdeviceptr{at.value()});
}

result<device_address> driver::allocate_async(std::size_t bytes, stream_handle stream) const {
  CUdeviceptr at = 0;
  return access::make(*this, {driver_call::MemAllocAsync, bytes, true}, table().MemAllocAsync, &at,
                      bytes, stream)
      .map([&] { return device_address(at); });
}

status driver::free_async(device_address at, stream_handle stream) const {
  return access::make(*this, {driver_call::MemFreeAsync}, table().MemFreeAsync,
                      CUdeviceptr{at.value()}, stream);
}

result<void *> driver::allocate_host(std::size_t bytes) const {
  void *at = nullptr;
  return access::make(*this, {driver_call::MemHostAlloc, bytes}, table().MemHostAlloc, &at, bytes,
                      static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE))
      .map([&] { return at; });
}

status driver::free_host(void *at) const {
  return access::make(*this, {driver_call::MemFreeHost}, table().MemFreeHost, at);
}

// ---- copies; bytes count once the driver has taken them ----

status driver::copy_to_device(device_address to, const void *from, std::size_t bytes) const {
  if (!readable(from, bytes)) return null_pointer(driver_call::MemcpyHtoD, bytes);
  return access::make(*this, {driver_call::MemcpyHtoD, bytes}, table().MemcpyHtoD,
                      CUdeviceptr{to.value()}, from, bytes)
      .map([&] { access::moved_to_device(*this, bytes); });
}

status driver::copy_to_host(void *to, device_address from, std::size_t bytes) const {
  if (!readable(to, bytes)) return null_pointer(driver_call::MemcpyDtoH, bytes);
  return access::make(*this, {driver_call::MemcpyDtoH, bytes}, table().MemcpyDtoH, to,
                      CUdeviceptr{from.value()}, bytes)
      .map([&] { access::moved_to_host(*this, bytes); });
}

status driver::copy_on_device(device_address to, device_address from, std::size_t bytes) const {
  return access::make(*this, {driver_call::MemcpyDtoD, bytes}, table().MemcpyDtoD,
                      CUdeviceptr{to.value()}, CUdeviceptr{from.value()}, bytes)
      .map([&] { access::moved_on_device(*this, bytes); });
}

status driver::copy_to_device_async(device_address to, const void *from, std::size_t bytes,
                                    stream_handle stream) const {
  if (!readable(from, bytes)) return null_pointer(driver_call::MemcpyHtoDAsync, bytes);
  return access::make(*this, {driver_call::MemcpyHtoDAsync, bytes}, table().MemcpyHtoDAsync,
                      CUdeviceptr{to.value()}, from, bytes, stream)
      .map([&] { access::moved_to_device(*this, bytes); });
}

status driver::copy_to_host_async(void *to, device_address from, std::size_t bytes,
                                  stream_handle stream) const {
  if (!readable(to, bytes)) return null_pointer(driver_call::MemcpyDtoHAsync, bytes);
  return access::make(*this, {driver_call::MemcpyDtoHAsync, bytes}, table().MemcpyDtoHAsync, to,
                      CUdeviceptr{from.value()}, bytes, stream)
      .map([&] { access::moved_to_host(*this, bytes); });
}

status driver::copy_on_device_async(device_address to, device_address from, std::size_t bytes,
                                    stream_handle stream) const {
  return access::make(*this, {driver_call::MemcpyDtoDAsync, bytes}, table().MemcpyDtoDAsync,
                      CUdeviceptr{to.value()}, CUdeviceptr{from.value()}, bytes, stream)
      .map([&] { access::moved_on_device(*this, bytes); });
}

status driver::set_bytes_async(device_address at, unsigned char value, std::size_t bytes,
                               stream_handle stream) const {
  return access::make(*this, {driver_call::MemsetD8Async, bytes}, table().MemsetD8Async,
                      CUdeviceptr{at.value()}, value, bytes, stream);
}

}  // namespace stillmap
