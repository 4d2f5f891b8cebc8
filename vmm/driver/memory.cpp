// Driver calls for addresses, physical memory and mappings, and the conversion of CUDA's structs.
#include <algorithm>
#include <cstring>
#include <vector>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/driver/calls.h"

namespace stillmap {

using enum driver_call;

namespace {

// By number, because CUDA 12.0 lacks the name.
constexpr auto handle_fabric = static_cast<CUmemAllocationHandleType>(8);

// CUDA's values in the order of handle_type and of access_mode.
constexpr CUmemAllocationHandleType handle_types[] = {
    CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, handle_fabric};
constexpr CUmemAccess_flags access_flags[] = {CU_MEM_ACCESS_FLAGS_PROT_NONE,
                                              CU_MEM_ACCESS_FLAGS_PROT_READ,
                                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

// location_kind has the order of CUmemLocationType, some of whose names CUDA 12.0 lacks.
constexpr int first_location_type = CU_MEM_LOCATION_TYPE_DEVICE;

bool has_id(location_kind kind) {
  return kind == location_kind::device || kind == location_kind::host_numa;
}

CUmemLocation to_cuda(const memory_location &l) {
  CUmemLocation out;
  std::memset(&out, 0, sizeof out);
  out.type = static_cast<CUmemLocationType>(first_location_type + static_cast<int>(l.kind));
  if (has_id(l.kind)) out.id = l.id;
  return out;
}

CUmemAllocationProp to_cuda(const physical_properties &p) {
  CUmemAllocationProp out;
  std::memset(&out, 0, sizeof out);
  out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  out.location = to_cuda(p.location);
  out.requestedHandleTypes = handle_types[static_cast<int>(p.exportable)];
  out.allocFlags.gpuDirectRDMACapable = p.rdma ? 1 : 0;
  return out;
}

result<physical_properties> from_cuda(const CUmemAllocationProp &p) {
  const int kind = static_cast<int>(p.location.type) - first_location_type;
  if (kind < 0 || kind > static_cast<int>(location_kind::host_numa_current)) {
    return tl::unexpected<error>(error{
        make_error_code(errc::not_supported), name_of(MemGetAllocationPropertiesFromHandle),
        "memory of an unknown kind of location", static_cast<std::uint64_t>(p.location.type)});
  }
  physical_properties out;
  out.location.kind = static_cast<location_kind>(kind);
  if (has_id(out.location.kind)) out.location.id = p.location.id;
  const auto types = static_cast<unsigned>(p.requestedHandleTypes);
  if ((types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
    out.exportable = handle_type::posix_fd;
  } else if ((types & static_cast<unsigned>(handle_fabric)) != 0) {
    out.exportable = handle_type::fabric;
  }
  out.rdma = p.allocFlags.gpuDirectRDMACapable != 0;
  return out;
}

CUmemGenericAllocationHandle raw(physical_handle h) {
  return static_cast<CUmemGenericAllocationHandle>(h);
}

}  // namespace

result<device_address> driver::reserve_addresses(std::size_t bytes, std::size_t alignment,
                                                 device_address hint) const {
  CUdeviceptr at = 0;
  const status s = driver_access::make<MemAddressReserve>(*this, {bytes}, &at, bytes, alignment,
                                                          raw(hint), 0ull);
  if (s) return device_address(at);
  // Addresses ran out, so freeing memory would not help.
  if (s.error().code == std::error_code(CUDA_ERROR_OUT_OF_MEMORY, cuda_category())) {
    return tl::unexpected<error>(error{make_error_code(errc::address_space_exhausted),
                                       name_of(driver_call::MemAddressReserve),
                                       "CUDA_ERROR_OUT_OF_MEMORY", bytes, 0, error_unit::bytes});
  }
  return tl::unexpected(s.error());
}

status driver::free_addresses(virtual_range range) const {
  return driver_access::make<MemAddressFree>(*this, {range.bytes}, raw(range.begin), range.bytes);
}

result<physical_handle> driver::create_physical(std::size_t bytes,
                                                const physical_properties &p) const {
  const CUmemAllocationProp what = to_cuda(p);
  // The error of host memory does not state the device's free memory.
  const bool on_a_device = p.location.kind == location_kind::device;
  return driver_access::get<MemCreate, CUmemGenericAllocationHandle, physical_handle>(
      *this, {bytes, on_a_device}, bytes, &what, 0ull);
}

status driver::release_physical(physical_handle h) const {
  const status s = driver_access::make<MemRelease>(*this, {}, raw(h));
  if (s && import_count_.load(std::memory_order_acquire) != 0) {
    const lock_guard lock(import_mutex_);
    if (const auto at = std::find(imports_.begin(), imports_.end(), h); at != imports_.end()) {
      imports_.erase(at);
      import_count_.store(imports_.size(), std::memory_order_release);
    }
  }
  return s;
}

std::vector<physical_handle> driver::imports() const {
  const lock_guard lock(import_mutex_);
  return imports_;
}

// Makes room in imports_ before the driver imports anything. end_import() follows.
status driver::prepare_import() const {
  return with_host_memory(name_of(MemImportFromShareableHandle), [&]() -> status {
    const lock_guard lock(import_mutex_);
    const std::size_t wanted = imports_.size() + importing_ + 1;
    if (wanted > imports_.capacity()) imports_.reserve(std::max(wanted, 2 * imports_.capacity()));
    ++importing_;
    return {};
  });
}

// Records `imported`, unless it is none; with `only_again`, only what was imported before.
void driver::end_import(physical_handle imported, bool only_again) const noexcept {
  const lock_guard lock(import_mutex_);
  --importing_;
  if (imported == physical_handle::none) return;
  if (only_again && std::find(imports_.begin(), imports_.end(), imported) == imports_.end()) return;
  imports_.push_back(imported);
  import_count_.store(imports_.size(), std::memory_order_release);
}

status driver::map(device_address at, std::size_t bytes, physical_handle h) const {
  return driver_access::make<MemMap>(*this, {bytes}, raw(at), bytes, std::size_t{0}, raw(h), 0ull);
}

status driver::unmap(virtual_range range) const {
  return driver_access::make<MemUnmap>(*this, {range.bytes}, raw(range.begin), range.bytes);
}

status driver::set_access(virtual_range range, const access_grant *grants,
                          std::size_t count) const {
  // A longer list takes several calls rather than memory.
  constexpr std::size_t most = 64;
  if (grants == nullptr) count = 0;  // an error of the driver
  std::array<CUmemAccessDesc, most> list;
  do {
    const std::size_t n = std::min(count, most);
    for (std::size_t i = 0; i < n; ++i) {
      list[i].location = to_cuda(grants[i].location);
      list[i].flags = access_flags[static_cast<int>(grants[i].mode)];
    }
    STILLMAP_RETURN_IF_ERROR(
        driver_access::make<MemSetAccess>(*this, {range.bytes}, raw(range.begin), range.bytes,
                                          grants == nullptr ? nullptr : list.data(), n));
    grants += n;
    count -= n;
  } while (count != 0);
  return {};
}

result<access_mode> driver::get_access(device_address at, memory_location from) const {
  unsigned long long flags = 0;
  const CUmemLocation where = to_cuda(from);
  return driver_access::make<MemGetAccess>(*this, {}, &flags, &where, raw(at)).map([&] {
    if (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return access_mode::read_write;
    return flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? access_mode::read : access_mode::none;
  });
}

result<int> driver::export_fd(physical_handle h) const {
  return driver_access::get<MemExportToShareableHandle, int>(
      *this, {}, raw(h), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ull);
}

result<std::array<unsigned char, 64>> driver::export_fabric(physical_handle h) const {
  return driver_access::get<MemExportToShareableHandle, std::array<unsigned char, 64>>(
      *this, {}, raw(h), handle_fabric, 0ull);
}

result<physical_handle> driver::import_fd(int fd) const {
  STILLMAP_RETURN_IF_ERROR(prepare_import());
  CUmemGenericAllocationHandle handle = 0;
  // The pointer argument is the descriptor itself.
  auto *os_handle = reinterpret_cast<void *>(static_cast<std::intptr_t>(fd));
  const status s = driver_access::make<MemImportFromShareableHandle>(
      *this, {}, &handle, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const auto imported = s ? static_cast<physical_handle>(handle) : physical_handle::none;
  end_import(imported, false);
  return s.map([&] { return imported; });
}

result<std::size_t> driver::granularity(const physical_properties &p, bool recommended) const {
  const CUmemAllocationProp what = to_cuda(p);
  return driver_access::get<MemGetAllocationGranularity, std::size_t>(
      *this, {}, &what,
      recommended ? CU_MEM_ALLOC_GRANULARITY_RECOMMENDED : CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

result<physical_properties> driver::properties(physical_handle h) const {
  CUmemAllocationProp what;
  std::memset(&what, 0, sizeof what);
  return driver_access::make<MemGetAllocationPropertiesFromHandle>(*this, {}, &what, raw(h))
      .and_then([&] { return from_cuda(what); });
}

result<physical_handle> driver::retain_physical(device_address at) const {
  STILLMAP_RETURN_IF_ERROR(prepare_import());
  CUmemGenericAllocationHandle handle = 0;
  const status s = driver_access::make<MemRetainAllocationHandle>(*this, {}, &handle, at.pointer());
  const auto retained = s ? static_cast<physical_handle>(handle) : physical_handle::none;
  end_import(retained, true);
  return s.map([&] { return retained; });
}

}  // namespace stillmap
