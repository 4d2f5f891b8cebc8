// Driver calls for addresses, physical memory and mappings, and the conversion of CUDA's structs.
#include <algorithm>
#include <cstring>
#include <vector>

#include "stillmap/vmm/driver/calls.h"

namespace stillmap {

using access = driver_access;

namespace {

// Written as numbers where a name came after CUDA 12.0: an older toolkit must compile this.
constexpr auto location_host = static_cast<CUmemLocationType>(2);
constexpr auto location_host_numa = static_cast<CUmemLocationType>(3);
constexpr auto location_host_numa_current = static_cast<CUmemLocationType>(4);
constexpr auto handle_fabric = static_cast<CUmemAllocationHandleType>(8);

CUmemLocation to_cuda(const memory_location &l) {
  CUmemLocation out;
  std::memset(&out, 0, sizeof out);
  switch (l.kind) {
    case location_kind::device:
      out.type = CU_MEM_LOCATION_TYPE_DEVICE;
      out.id = l.id;
      break;
    case location_kind::host:
      out.type = location_host;
      break;
    case location_kind::host_numa:
      out.type = location_host_numa;
      out.id = l.id;
      break;
    case location_kind::host_numa_current:
      out.type = location_host_numa_current;
      break;
  }
  return out;
}

CUmemAllocationProp to_cuda(const physical_properties &p) {
  CUmemAllocationProp out;
  std::memset(&out, 0, sizeof out);
  out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  out.location = to_cuda(p.location);
  switch (p.exportable) {
    case handle_type::none:
      out.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
      break;
    case handle_type::posix_fd:
      out.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      break;
    case handle_type::fabric:
      out.requestedHandleTypes = handle_fabric;
      break;
  }
  out.allocFlags.gpuDirectRDMACapable = p.rdma ? 1 : 0;
  return out;
}

result<physical_properties> from_cuda(const CUmemAllocationProp &p) {
  constexpr const char *operation = name_of(driver_call::MemGetAllocationPropertiesFromHandle);
  physical_properties out;
  switch (static_cast<int>(p.location.type)) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      out.location = on_device(p.location.id);
      break;
    case location_host:
      out.location = {location_kind::host, 0};
      break;
    case location_host_numa:
      out.location = on_host_numa(p.location.id);
      break;
    case location_host_numa_current:
      out.location = {location_kind::host_numa_current, 0};
      break;
    default:
      return make_error(errc::not_supported, operation, "memory of an unknown kind of location",
                        static_cast<std::uint64_t>(p.location.type));
  }
  const auto types = static_cast<unsigned>(p.requestedHandleTypes);
  if ((types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
    out.exportable = handle_type::posix_fd;
  } else if ((types & static_cast<unsigned>(handle_fabric)) != 0) {
    out.exportable = handle_type::fabric;
  }
  out.rdma = p.allocFlags.gpuDirectRDMACapable != 0;
  return out;
}

CUmemAccess_flags to_cuda(access_mode mode) {
  switch (mode) {
    case access_mode::none:
      break;
    case access_mode::read:
      return CU_MEM_ACCESS_FLAGS_PROT_READ;
    case access_mode::read_write:
      return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

CUmemGenericAllocationHandle raw(physical_handle h) {
  return static_cast<CUmemGenericAllocationHandle>(h);
}

}  // namespace

result<device_address> driver::reserve_addresses(std::size_t bytes, std::size_t alignment,
                                                 device_address hint) const {
  CUdeviceptr at = 0;
  const status s =
      access::make(*this, {driver_call::MemAddressReserve, bytes}, table().MemAddressReserve, &at,
                   bytes, alignment, CUdeviceptr{hint.value()}, 0ull);
  if (s) return device_address(at);
  // Freeing memory would not help: it is addresses that ran out.
  if (s.error().code == std::error_code(CUDA_ERROR_OUT_OF_MEMORY, cuda_category())) {
    return make_error(errc::address_space_exhausted, name_of(driver_call::MemAddressReserve),
                      "CUDA_ERROR_OUT_OF_MEMORY", bytes, 0, error_unit::bytes);
  }
  return tl::unexpected<error>(s.error());
}

status driver::free_addresses(virtual_range range) const {
  return access::make(*this, {driver_call::MemAddressFree, range.bytes}, table().MemAddressFree,
                      CUdeviceptr{range.begin.value()}, range.bytes);
}

result<physical_handle> driver::create_physical(std::size_t bytes,
                                                const physical_properties &p) const {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp what = to_cuda(p);
  // What is free on the device says nothing about memory of the host.
  const bool on_a_device = p.location.kind == location_kind::device;
  return access::make(*this, {driver_call::MemCreate, bytes, on_a_device}, table().MemCreate,
                      &handle, bytes, &what, 0ull)
      .map([&] { return static_cast<physical_handle>(handle); });
}

status driver::release_physical(physical_handle h) const {
  const status s = access::make(*this, {driver_call::MemRelease}, table().MemRelease, raw(h));
  if (s && import_count_.load(std::memory_order_acquire) != 0) {
    const std::lock_guard lock(import_mutex_);
    if (const auto at = std::find(imports_.begin(), imports_.end(), h); at != imports_.end()) {
      imports_.erase(at);
      import_count_.store(imports_.size(), std::memory_order_release);
    }
  }
  return s;
}

std::vector<physical_handle> driver::imports() const {
  const std::lock_guard lock(import_mutex_);
  return imports_;
}

status driver::map(device_address at, std::size_t bytes, physical_handle h) const {
  return access::make(*this, {driver_call::MemMap, bytes}, table().MemMap, CUdeviceptr{at.value()},
                      bytes, std::size_t{0}, raw(h), 0ull);
}

status driver::unmap(virtual_range range) const {
  return access::make(*this, {driver_call::MemUnmap, range.bytes}, table().MemUnmap,
                      CUdeviceptr{range.begin.value()}, range.bytes);
}

status driver::set_access(virtual_range range, const access_grant *grants,
                          std::size_t count) const {
  // Nearly every call grants one or a few devices; only a longer list pays an allocation.
  std::array<CUmemAccessDesc, 8> few;
  std::vector<CUmemAccessDesc> many;
  CUmemAccessDesc *list = few.data();
  if (grants == nullptr) {
    list = nullptr;  // the driver's to refuse
    count = 0;
  } else if (count > few.size()) {
    many.resize(count);
    list = many.data();
  }
  for (std::size_t i = 0; i < count; ++i) {
    list[i].location = to_cuda(grants[i].location);
    list[i].flags = to_cuda(grants[i].mode);
  }
  return access::make(*this, {driver_call::MemSetAccess, range.bytes}, table().MemSetAccess,
                      CUdeviceptr{range.begin.value()}, range.bytes, list, count);
}

result<access_mode> driver::get_access(device_address at, memory_location from) const {
  unsigned long long flags = 0;
  const CUmemLocation where = to_cuda(from);
  return access::make(*this, {driver_call::MemGetAccess}, table().MemGetAccess, &flags, &where,
                      CUdeviceptr{at.value()})
      .map([&] {
        if (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return access_mode::read_write;
        return flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? access_mode::read : access_mode::none;
      });
}

result<int> driver::export_fd(physical_handle h) const {
  int fd = -1;
  return access::make(*this, {driver_call::MemExportToShareableHandle},
                      table().MemExportToShareableHandle, static_cast<void *>(&fd), raw(h),
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ull)
      .map([&] { return fd; });
}

result<std::array<unsigned char, 64>> driver::export_fabric(physical_handle h) const {
  std::array<unsigned char, 64> handle{};
  return access::make(*this, {driver_call::MemExportToShareableHandle},
                      table().MemExportToShareableHandle, static_cast<void *>(handle.data()),
                      raw(h), handle_fabric, 0ull)
      .map([&] { return handle; });
}

result<physical_handle> driver::import_fd(int fd) const {
  CUmemGenericAllocationHandle handle = 0;
  // The descriptor itself travels in the pointer.
  auto *os_handle = reinterpret_cast<void *>(static_cast<std::intptr_t>(fd));
  return access::make(*this, {driver_call::MemImportFromShareableHandle},
                      table().MemImportFromShareableHandle, &handle, os_handle,
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
      .map([&] {
        const std::lock_guard lock(import_mutex_);
        imports_.push_back(static_cast<physical_handle>(handle));
        import_count_.store(imports_.size(), std::memory_order_release);
        return static_cast<physical_handle>(handle);
      });
}

result<std::size_t> driver::granularity(const physical_properties &p, bool recommended) const {
  std::size_t bytes = 0;
  const CUmemAllocationProp what = to_cuda(p);
  return access::make(
             *this, {driver_call::MemGetAllocationGranularity}, table().MemGetAllocationGranularity,
             &bytes, &what,
             recommended ? CU_MEM_ALLOC_GRANULARITY_RECOMMENDED : CU_MEM_ALLOC_GRANULARITY_MINIMUM)
      .map([&] { return bytes; });
}

result<physical_properties> driver::properties(physical_handle h) const {
  CUmemAllocationProp what;
  std::memset(&what, 0, sizeof what);
  return access::make(*this, {driver_call::MemGetAllocationPropertiesFromHandle},
                      table().MemGetAllocationPropertiesFromHandle, &what, raw(h))
      .and_then([&] { return from_cuda(what); });
}

result<physical_handle> driver::retain_physical(device_address at) const {
  CUmemGenericAllocationHandle handle = 0;
  return access::make(*this, {driver_call::MemRetainAllocationHandle},
                      table().MemRetainAllocationHandle, &handle, at.pointer())
      .map([&] {
        const auto h = static_cast<physical_handle>(handle);
        if (import_count_.load(std::memory_order_acquire) != 0) {
          const std::lock_guard lock(import_mutex_);
          if (std::find(imports_.begin(), imports_.end(), h) != imports_.end()) {
            imports_.push_back(h);
          }
          import_count_.store(imports_.size(), std::memory_order_release);
        }
        return h;
      });
}

}  // namespace stillmap
