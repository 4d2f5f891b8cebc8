// Sharing of pools and their blocks between processes, by POSIX descriptor.
//
// A shareable pool is one file, whose descriptor is the handle of the pool. The export data of a
// block is its range of the file. The importer maps the chunks around it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/pool.h"
#include "hostcuda/src/memory/vmm_props.h"

namespace hostcuda {
namespace {

constexpr const char *kPoolName = "hostcuda-pool:%d";
constexpr char kExportMagic[8] = {'h', 'c', 'p', 'o', 'o', 'l', '0', '2'};

// What CUmemPoolPtrExportData holds. It comes from another process: nothing in it is trusted.
struct exported_block {
  char magic[8];
  std::uint64_t device;  // of the file, with `inode`
  std::uint64_t inode;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t chunk;  // the id of the memory around it
  std::uint64_t chunk_bytes;
};
static_assert(sizeof(exported_block) <= sizeof(CUmemPoolPtrExportData));

CUresult export_pool(CUmemoryPool handle, int type, int *out) {
  std::shared_ptr<pool_file> file;
  {
    exclusive lock(the_memory().mutex);
    const memory_pool *const p = find_pool_locked(handle);
    if (p == nullptr || p->imported || p->a.file == nullptr) return CUDA_ERROR_INVALID_VALUE;
    file = p->a.file;
  }
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(file->fd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *out = fd;
  return CUDA_SUCCESS;
}

CUresult import_pool(int fd, CUmemoryPool *out) {
  CUdevice device = 0;
  if (std::sscanf(file_behind(fd).c_str(), "/memfd:hostcuda-pool:%d", &device) != 1 ||
      !valid_device(device))
    return CUDA_ERROR_INVALID_VALUE;
  if (current_settings().machine.refuses_fd_pools) return CUDA_ERROR_NOT_SUPPORTED;
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  auto file = std::make_shared<pool_file>(own);
  exclusive lock(the_memory().mutex);
  memory_pool *const p = add_pool_locked(device);
  p->imported = true;
  p->a.keeps_empty = false;  // a chunk goes with its block
  p->a.file = std::move(file);
  *out = handle_of_pool(p);
  return CUDA_SUCCESS;
}

CUresult export_block(CUdeviceptr at, CUmemPoolPtrExportData *out) {
  exported_block e{};
  exclusive lock(the_memory().mutex);
  const auto k = the_memory().blocks.find(at);
  if (k == the_memory().blocks.end() || k->second.freeing || k->second.pool == nullptr ||
      k->second.pool->imported || k->second.pool->a.file == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  const auto chunk = containing(the_memory().chunks, at);
  struct stat st {};
  if (fstat(k->second.pool->a.file->fd(), &st) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (const CUresult r = share_physical_locked(chunk->second.memory); r != CUDA_SUCCESS) return r;
  std::memcpy(e.magic, kExportMagic, sizeof e.magic);
  e.device = st.st_dev;
  e.inode = st.st_ino;
  e.offset = chunk->second.memory->where.offset + (at - chunk->first);
  e.bytes = k->second.bytes;
  e.chunk = chunk->second.memory->id;
  e.chunk_bytes = chunk->second.bytes;
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &e, sizeof e);
  return CUDA_SUCCESS;
}

CUresult import_block(CUmemoryPool handle, const CUmemPoolPtrExportData *data, CUdeviceptr *out) {
  exported_block e;
  std::memcpy(&e, data, sizeof e);
  std::shared_ptr<pool_file> file;
  {
    exclusive lock(the_memory().mutex);
    const memory_pool *const p = find_pool_locked(handle);
    if (p == nullptr || !p->imported) return CUDA_ERROR_INVALID_VALUE;
    file = p->a.file;
  }
  struct stat st {};
  if (fstat(file->fd(), &st) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const auto length = static_cast<std::uint64_t>(st.st_size);
  if (std::memcmp(e.magic, kExportMagic, sizeof e.magic) != 0 || e.device != st.st_dev ||
      e.inode != st.st_ino || e.bytes == 0 || e.offset % 512 != 0 || e.offset >= length ||
      e.bytes > length - e.offset)
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t first = e.offset / kGranularity * kGranularity;
  const std::size_t bytes = round_up(e.offset + e.bytes, kGranularity) - first;
  if (bytes > length - first) return CUDA_ERROR_INVALID_VALUE;  // chunks are whole
  if (e.chunk_bytes < bytes || e.chunk_bytes > length) return CUDA_ERROR_INVALID_VALUE;
  const extent where{file->fd(), first, bytes};
  void *const at = reserve_range(bytes, kGranularity, nullptr);
  if (at == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!may_map_extent() || !map_extent(at, where, 3)) {
    release_range(at, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  populate_range(at, bytes);
  exclusive lock(the_memory().mutex);
  memory_pool *const p = find_pool_locked(handle);
  if (p == nullptr || p->a.file != file) {  // destroyed in the meantime
    release_range(at, bytes);
    return CUDA_ERROR_INVALID_VALUE;
  }
  block proto;
  proto.pool = p;
  physical *const memory = import_physical_locked(
      p->a.location, where, {{e.inode, e.chunk}, e.chunk_bytes}, std::move(file));
  if (memory == nullptr) {
    release_range(at, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = arena_adopt_locked(&p->a, memory, at, e.offset - first, e.bytes, proto);
  return CUDA_SUCCESS;
}

}  // namespace

std::shared_ptr<pool_file> make_pool_file(CUdevice device) {
  char name[64];
  std::snprintf(name, sizeof name, kPoolName, device);
  const int fd = memfd_create(name, MFD_CLOEXEC);
  return fd < 0 ? nullptr : std::make_shared<pool_file>(fd);
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuMemPoolExportToShareableHandle, 11020, needs_pools, 0,
               (void *out, CUmemoryPool pool, CUmemAllocationHandleType type,
                unsigned long long flags),
               {
                 if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
                 return export_pool(pool, static_cast<int>(type), static_cast<int *>(out));
               })

HOSTCUDA_ENTRY(cuMemPoolImportFromShareableHandle, 11020, needs_pools, 0,
               (CUmemoryPool * out, void *shared, CUmemAllocationHandleType type,
                unsigned long long flags),
               {
                 if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
                 if (const CUresult r = check_import_type(type); r != CUDA_SUCCESS) return r;
                 return import_pool(static_cast<int>(reinterpret_cast<intptr_t>(shared)), out);
               })

HOSTCUDA_ENTRY(cuMemPoolExportPointer, 11020, needs_pools, 0,
               (CUmemPoolPtrExportData * out, CUdeviceptr at),
               { return out == nullptr ? CUDA_ERROR_INVALID_VALUE : export_block(at, out); })

HOSTCUDA_ENTRY(cuMemPoolImportPointer, 11020, needs_pools, 0,
               (CUdeviceptr * out, CUmemoryPool pool, CUmemPoolPtrExportData *data), {
                 if (out == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 return import_block(pool, data, out);
               })
