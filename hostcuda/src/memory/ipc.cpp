// cuIpcGetMemHandle, cuIpcOpenMemHandle and cuIpcCloseMemHandle.
//
// An exported block has a small file that describes it, and the handle is the name of that file. The
// file is closed when the block is freed, so the handle is void then. The importer maps the chunks
// around the block, as it does for the blocks of a shared pool.
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/arena.h"
#include "hostcuda/src/memory/ipc_registry.h"
#include "hostcuda/src/memory/memory_parts.h"
#include "hostcuda/src/shared_file.h"

namespace hostcuda {
namespace {

constexpr char kIpcMagic[8] = {'h', 'c', 'i', 'p', 'c', 'm', '0', '2'};

// What a CUipcMemHandle holds.
struct memory_name {
  char magic[8];
  file_name description;
};
static_assert(sizeof(memory_name) <= sizeof(CUipcMemHandle));

// What the file holds.
struct block_description {
  char magic[8];
  file_name pages;  // fd -1: unbacked
  std::uint64_t offset;
  std::uint64_t bytes;
  std::int32_t location;
  std::int32_t unused;
  std::uint64_t chunk;  // the id of the memory around it
  std::uint64_t chunk_bytes;
};

// The arenas of the imported chunks, by exporting device.
arena *import_arenas() {
  static arena *const all = new arena[kMaxDevices];
  return all;
}

bool same_description(const file_name &a, const file_name &b) {
  return a.pid == b.pid && a.device == b.device && a.inode == b.inode;
}

CUresult export_memory(CUdeviceptr at, CUipcMemHandle *out) {
  memory_registry &b = the_memory();
  exclusive lock(b.mutex);
  const auto k = b.blocks.find(at);
  if (k == b.blocks.end() || !legacy_ipc_capable(k->second)) return CUDA_ERROR_INVALID_VALUE;
  memory_name name{};
  std::memcpy(name.magic, kIpcMagic, sizeof name.magic);
  if (const auto before = ipc().exported.find(k->second.id); before != ipc().exported.end()) {
    name.description = name_of(before->second.fd());
  } else {
    const auto home = containing(b.chunks, at);
    const extent &where = home->second.memory->where;
    block_description d{};
    std::memcpy(d.magic, kIpcMagic, sizeof d.magic);
    if (const CUresult r = share_physical_locked(home->second.memory); r != CUDA_SUCCESS) return r;
    d.pages = name_of(where.fd);
    d.offset = where.offset + (at - home->first);
    d.bytes = k->second.bytes;
    d.location = k->second.location;
    d.chunk = home->second.memory->id;
    d.chunk_bytes = home->second.bytes;
    shared_file file = make_file("hostcuda-ipc", &d, sizeof d);
    if (file.fd() < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    pages_of(home->second.memory->location).share();
    name.description = name_of(file.fd());
    ipc().exported.emplace(k->second.id, std::move(file));
    k->second.exported = true;
  }
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &name, sizeof name);
  return CUDA_SUCCESS;
}

// Opens the memory that `d` describes.
CUresult open_pages(const block_description &d, extent *where, std::shared_ptr<pool_file> *file) {
  const std::size_t first = d.offset / kGranularity * kGranularity;
  if (d.bytes == 0 || d.offset % 512 != 0 || d.bytes > (std::uint64_t{1} << 46) ||
      d.offset > (std::uint64_t{1} << 46) || !valid_device(d.location))
    return CUDA_ERROR_INVALID_HANDLE;
  const std::size_t bytes = round_up(d.offset + d.bytes, kGranularity) - first;
  if (d.chunk_bytes < bytes || d.chunk_bytes > (std::uint64_t{1} << 46))
    return CUDA_ERROR_INVALID_HANDLE;
  if ((d.pages.fd < 0) != unbacked()) return CUDA_ERROR_MAP_FAILED;  // one side has no bytes
  *where = extent{-1, first, bytes};
  if (d.pages.fd >= 0) {
    shared_file pages;
    if (const CUresult r = open_file(d.pages, &pages); r != CUDA_SUCCESS) return r;
    struct stat st {};
    if (fstat(pages.fd(), &st) != 0 || static_cast<std::uint64_t>(st.st_size) < first + bytes)
      return CUDA_ERROR_INVALID_HANDLE;
    where->fd = pages.fd();
    *file = std::make_shared<pool_file>(pages.release());
  } else {
    *file = std::make_shared<pool_file>(-1);
  }
  return CUDA_SUCCESS;
}

// The handles of one device of another process may be opened by one context of each device.
// Finds the import of a file that `ctx` has opened before.
CUresult look_for_import_locked(const file_name &from, int location, context *ctx,
                                CUdeviceptr *out) {
  for (auto &[at, i] : ipc().imported) {
    if (i.from.pid != from.pid || i.location != location || i.ctx->device != ctx->device) continue;
    if (i.ctx != ctx) return CUDA_ERROR_INVALID_CONTEXT;
    if (!same_description(i.from, from)) continue;
    ++i.opened;
    *out = at;
  }
  return CUDA_SUCCESS;
}

CUresult open_memory(CUdeviceptr *out, const CUipcMemHandle &handle) {
  memory_name name{};
  std::memcpy(&name, &handle, sizeof name);
  if (std::memcmp(name.magic, kIpcMagic, sizeof name.magic) != 0) return CUDA_ERROR_INVALID_HANDLE;
  shared_file file;
  if (const CUresult r = open_file(name.description, &file); r != CUDA_SUCCESS) return r;
  block_description d{};
  if (!read_start(file, &d, sizeof d) || std::memcmp(d.magic, kIpcMagic, sizeof d.magic) != 0)
    return CUDA_ERROR_INVALID_HANDLE;
  // As on GPUs: a process cannot open its own memory.
  if (name.description.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  context *const ctx = current_context();
  if (valid_device(d.location) && d.location != ctx->device &&
      !can_access_peer(ctx->device, d.location))
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;

  // One at a time, so that a handle that two threads open is mapped once.
  static std::mutex opening;
  std::lock_guard<std::mutex> one(opening);
  {
    exclusive lock(the_memory().mutex);
    *out = 0;
    const CUresult r = look_for_import_locked(name.description, d.location, ctx, out);
    if (r != CUDA_SUCCESS || *out != 0) return r;
  }
  extent where;
  std::shared_ptr<pool_file> pages;
  if (const CUresult r = open_pages(d, &where, &pages); r != CUDA_SUCCESS) return r;
  void *const at = reserve_range(where.bytes, kGranularity, nullptr);
  if (at == nullptr) return CUDA_ERROR_MAP_FAILED;
  if (!may_map_extent() || !map_extent(at, where, 3)) {
    release_range(at, where.bytes);
    return CUDA_ERROR_MAP_FAILED;
  }
  populate_range(at, where.bytes);
  exclusive lock(the_memory().mutex);
  const std::uint64_t named =
      d.pages.fd >= 0 ? d.pages.inode : file_of_unbacked(name.description.pid);
  physical *const memory = import_physical_locked(
      d.location, where, {{named, d.chunk}, d.chunk_bytes}, std::move(pages));
  if (memory == nullptr) {
    release_range(at, where.bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  block proto;
  proto.ctx = ctx;
  proto.imported = true;
  arena *const a = import_arenas() + d.location;
  a->location = d.location;
  *out = arena_adopt_locked(a, memory, at, d.offset - where.offset, d.bytes, proto);
  ipc().imported[*out] = {name.description, d.location, ctx, 1};
  return CUDA_SUCCESS;
}

CUresult close_memory(CUdeviceptr at) {
  block k;
  {
    exclusive lock(the_memory().mutex);
    const auto i = ipc().imported.find(at);
    if (i == ipc().imported.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--i->second.opened != 0) return CUDA_SUCCESS;
    k = the_memory().blocks.find(at)->second;
    ipc().imported.erase(i);
  }
  wait_for_device(k.ctx->device);
  range_goes_away(at, k.bytes, "cuIpcCloseMemHandle", true);
  return remove_block(at);
}

}  // namespace

void reset_ipc() {
  ipc().exported.clear();
  ipc().imported.clear();
  for (int i = 0; i < kMaxDevices; ++i) import_arenas()[i] = arena{};
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuIpcGetMemHandle, 4010, needs_context, 0, (CUipcMemHandle * out, CUdeviceptr at),
               { return out == nullptr ? CUDA_ERROR_INVALID_VALUE : export_memory(at, out); })

HOSTCUDA_ENTRY_AND_V2(cuIpcOpenMemHandle, 4010, 11000, needs_context, 0,
                      (CUdeviceptr * out, CUipcMemHandle handle, unsigned flags),
                      (out, handle, flags), {
                        if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
                          return CUDA_ERROR_INVALID_VALUE;
                        if (capture_forbids_unsafe_call())
                          return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
                        return open_memory(out, handle);
                      })

HOSTCUDA_ENTRY(cuIpcCloseMemHandle, 4010, needs_context | ignores_sticky, 0, (CUdeviceptr at), {
  if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return close_memory(at);
})
