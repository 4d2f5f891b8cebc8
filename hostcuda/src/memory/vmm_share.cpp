// Sharing of physical memory between processes, and VMM functions that no profile supports.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/memory_state.h"
#include "hostcuda/src/memory/vmm_handles.h"
#include "hostcuda/src/memory/vmm_props.h"

namespace hostcuda {
namespace {

// Whether a file is a memfd: all memfds are on one file system, which has no other files with
// descriptors.
bool is_memfd(const struct stat &st) {
  static const dev_t where = [] {
    const int fd = memfd_create("hostcuda-where", MFD_CLOEXEC);
    struct stat own {};
    const bool known = fd >= 0 && fstat(fd, &own) == 0;
    if (fd >= 0) close(fd);
    return known ? own.st_dev : dev_t{};
  }();
  return where != dev_t{} && st.st_dev == where;
}

// Imports the file descriptor of an allocation of this or another process.
CUresult import_fd(int fd, CUmemGenericAllocationHandle *out) {
  CUmemAllocationProp prop;
  struct stat st {};
  if (fstat(fd, &st) != 0 || (!(is_memfd(st) && parse_share_mode(st.st_mode, &prop)) &&
                              !parse_share_name(file_behind(fd), &prop)))
    return CUDA_ERROR_INVALID_VALUE;
  const auto bytes = static_cast<std::size_t>(st.st_size);
  int location = 0;
  if (CUresult r = check_properties(&prop, &location); r != CUDA_SUCCESS) return r;
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::pair<std::uint64_t, std::uint64_t> id{st.st_dev, st.st_ino};

  memory_registry &b = the_memory();
  std::unique_lock<std::shared_mutex> lock(b.mutex);
  physical *memory = nullptr;
  if (const auto it = b.shared_files.find(id); it != b.shared_files.end()) {
    memory = it->second;  // allocated or imported by this process before
    ++memory->refs;
  } else {
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    auto fresh = std::make_unique<physical>();
    fresh->location = location;
    if (!hold_physical_locked(fresh.get(), {{st.st_ino, 0}, bytes})) {
      close(own);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory = fresh.release();
    memory->id = b.next_id++;
    // Unbacked: the file has a size and no pages, and is never mapped.
    memory->where = extent{own, 0, bytes};
    memory->own_file = true;
    memory->counted = false;  // the creating process is charged
    memory->vmm = true;
    memory->refs = 1;
    memory->file_id = id;
    b.shared_files[id] = memory;
    ++b.vmm_allocations;
  }
  *out = add_handle_locked(memory, prop);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuMemExportToShareableHandle, 10020, needs_vmm, 0,
               (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                unsigned long long flags),
               {
                 if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
                 exclusive lock(the_memory().mutex);
                 const vmm_handle *h = find_handle_locked(handle);
                 if (h == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 const auto bit = static_cast<unsigned>(type);
                 const auto had = static_cast<unsigned>(h->prop.requestedHandleTypes);
                 if (bit == 0 || (bit & (bit - 1)) != 0 || (had & bit) == 0)
                   return CUDA_ERROR_INVALID_VALUE;
                 if (CUresult r = share_physical_locked(h->memory); r != CUDA_SUCCESS) return r;
                 const int fd = fcntl(h->memory->where.fd, F_DUPFD_CLOEXEC, 0);
                 if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
                 *static_cast<int *>(out) = fd;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuMemImportFromShareableHandle, 10020, needs_vmm, 0,
               (CUmemGenericAllocationHandle * handle, void *shared,
                CUmemAllocationHandleType type),
               {
                 if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 if (const CUresult r = check_import_type(type); r != CUDA_SUCCESS) return r;
                 return import_fd(static_cast<int>(reinterpret_cast<intptr_t>(shared)), handle);
               })

HOSTCUDA_ENTRY(cuMemGetHandleForAddressRange, 11070, plain, 0,
               (void *out, CUdeviceptr at, size_t bytes, CUmemRangeHandleType, unsigned long long),
               {
                 // DMA-BUF needs a device of the kernel. The attribute reports no support.
                 if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
                 std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
                 return known_locked(at) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
               })

HOSTCUDA_UNSUPPORTED(cuMemMapArrayAsync, 11010, plain, (CUarrayMapInfo *, unsigned, CUstream))
HOSTCUDA_UNSUPPORTED(cuMemMapArrayAsync_ptsz, 11010, plain, (CUarrayMapInfo *, unsigned, CUstream))
