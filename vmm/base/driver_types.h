// The driver's types without its header: opaque handles, memory locations, access rights.
// docs/driver.md#the-driver-seam
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stillmap/vmm/base/units.h"

// CUDA's own incomplete types, so that a CUstream is a stillmap::stream_handle without a cast.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace stillmap {

using context_handle = CUctx_st *;
using stream_handle = CUstream_st *;  // nullptr: the legacy default stream
using event_handle = CUevent_st *;
using module_handle = CUmod_st *;
using function_handle = CUfunc_st *;
enum class physical_handle : std::uint64_t { none = 0 };  // CUmemGenericAllocationHandle

enum class location_kind { device, host, host_numa, host_numa_current };

// A place of physical memory, or a device with access to it. `id`: device ordinal or NUMA node.
struct memory_location {
  location_kind kind = location_kind::device;
  int id = 0;
  constexpr bool operator==(const memory_location &) const = default;
};
constexpr memory_location on_device(int ordinal) {
  return {location_kind::device, ordinal};
}
constexpr memory_location on_host_numa(int node) {
  return {location_kind::host_numa, node};
}

enum class handle_type { none, posix_fd, fabric };

// The properties of a physical allocation (conformance 48).
struct physical_properties {
  memory_location location;
  handle_type exportable = handle_type::none;
  bool rdma = false;  // gpuDirectRDMACapable
  constexpr bool operator==(const physical_properties &) const = default;
};

enum class access_mode { none, read, read_write };

struct access_grant {
  memory_location location;
  access_mode mode = access_mode::read_write;
  constexpr bool operator==(const access_grant &) const = default;
};

struct memory_info {
  physical_size free;
  physical_size total;
};

// The checkpoint state of a process, by the value of CUprocessState.
enum class process_state : int {
  running = 0,
  locked = 1,        // its CUDA calls block
  checkpointed = 2,  // its device memory is host memory, and it holds no device
  failed = 3,        // for good
};

// Replaces a GPU by another one of the same kind when a process is restored.
struct device_change {
  std::array<unsigned char, 16> from{}, to{};  // UUIDs
};

// Every driver function the seam calls; the enumerator is cuX with X.
// clang-format off
#define STILLMAP_DRIVER_CALLS(X) \
  X(Init) X(DriverGetVersion) X(GetErrorName) X(GetErrorString) X(DeviceGet) \
  X(DeviceGetCount) X(DeviceGetName) X(DeviceGetAttribute) X(DeviceTotalMem) X(DeviceGetUuid) \
  X(DeviceCanAccessPeer) X(DevicePrimaryCtxRetain) X(DevicePrimaryCtxRelease) \
  X(CtxGetCurrent) X(CtxPushCurrent) X(CtxPopCurrent) X(CtxSynchronize) X(MemGetInfo) X(MemAlloc) \
  X(MemFree) X(MemAllocAsync) X(MemFreeAsync) X(MemHostAlloc) X(MemFreeHost) X(MemcpyHtoD) \
  X(MemcpyDtoH) X(MemcpyDtoD) X(MemcpyHtoDAsync) X(MemcpyDtoHAsync) X(MemcpyDtoDAsync) \
  X(MemsetD8Async) X(MemAddressReserve) X(MemAddressFree) X(MemCreate) X(MemRelease) \
  X(MemMap) X(MemUnmap) X(MemSetAccess) X(MemGetAccess) X(MemExportToShareableHandle) \
  X(MemImportFromShareableHandle) X(MemGetAllocationGranularity) \
  X(MemGetAllocationPropertiesFromHandle) X(MemRetainAllocationHandle) X(StreamCreate) \
  X(StreamDestroy) X(StreamSynchronize) X(StreamQuery) X(StreamWaitEvent) \
  X(StreamIsCapturing) X(ThreadExchangeStreamCaptureMode) X(EventCreate) X(EventDestroy) \
  X(EventRecord) X(EventQuery) X(EventSynchronize) X(ModuleLoadData) X(ModuleUnload) \
  X(ModuleGetFunction) X(LaunchKernel) X(CheckpointProcessGetState) X(CheckpointProcessLock) \
  X(CheckpointProcessCheckpoint) X(CheckpointProcessRestore) X(CheckpointProcessUnlock) \
  X(CheckpointProcessGetRestoreThreadId)
// clang-format on

// The stream capture mode of a thread, by the value of CUstreamCaptureMode.
enum class capture_mode : int { global = 0, of_this_thread = 1, relaxed = 2 };

enum class driver_call : unsigned {
#define STILLMAP_ENUMERATOR(name) name,
  STILLMAP_DRIVER_CALLS(STILLMAP_ENUMERATOR)
#undef STILLMAP_ENUMERATOR
};
inline constexpr std::size_t driver_call_count = []() constexpr {
  std::size_t n = 0;
#define STILLMAP_COUNT(name) ++n;
  STILLMAP_DRIVER_CALLS(STILLMAP_COUNT)
#undef STILLMAP_COUNT
  return n;
}
();

// "cuMemMap"
constexpr const char *name_of(driver_call call) {
  switch (call) {
#define STILLMAP_NAME(name) \
  case driver_call::name:   \
    return "cu" #name;
    STILLMAP_DRIVER_CALLS(STILLMAP_NAME)
#undef STILLMAP_NAME
  }
  return "cu?";
}

struct driver_counts {
  std::array<std::uint64_t, driver_call_count> calls{};
  std::uint64_t bytes_to_device = 0;
  std::uint64_t bytes_to_host = 0;
  std::uint64_t bytes_on_device = 0;  // device to device: what growing by copying costs

  std::uint64_t operator[](driver_call c) const { return calls[static_cast<std::size_t>(c)]; }
  std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (std::uint64_t n : calls) sum += n;
    return sum;
  }
  friend driver_counts operator-(driver_counts a, const driver_counts &b) {
    for (std::size_t i = 0; i < a.calls.size(); ++i) a.calls[i] -= b.calls[i];
    a.bytes_to_device -= b.bytes_to_device;
    a.bytes_to_host -= b.bytes_to_host;
    a.bytes_on_device -= b.bytes_on_device;
    return a;
  }
};

}  // namespace stillmap
