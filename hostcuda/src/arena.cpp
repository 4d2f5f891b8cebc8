#include "arena.h"

#include <algorithm>
#include <iterator>
#include <mutex>

namespace hostcuda {
namespace {

constexpr std::size_t kAlignment = 512;

using exclusive = std::unique_lock<std::shared_mutex>;

void *as_pointer(CUdeviceptr at) {
  return reinterpret_cast<void *>(at);
}

void add_free(arena *a, CUdeviceptr at, std::size_t bytes) {
  a->free_at.emplace(at, bytes);
  a->free_by_size.emplace(bytes, at);
}

void remove_free(arena *a, std::map<CUdeviceptr, std::size_t>::iterator it) {
  a->free_by_size.erase({it->second, it->first});
  a->free_at.erase(it);
}

CUresult add_chunk(arena *a, std::size_t bytes) {
  physical *memory = nullptr;
  if (CUresult r = create_physical(a->location, bytes, nullptr, &memory); r != CUDA_SUCCESS)
    return r;
  void *at = reserve_range(bytes, kGranularity, nullptr);
  if (at == nullptr || !map_extent(at, memory->where) || !protect_range(at, bytes, 3)) {
    if (at != nullptr) release_range(at, bytes);
    std::vector<physical *> dead;
    {
      exclusive lock(books().mutex);
      drop_locked(memory, &dead);
    }
    dispose(dead);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  populate_range(at, bytes);
  exclusive lock(books().mutex);
  const auto start = reinterpret_cast<CUdeviceptr>(at);
  books().chunks.emplace(start, chunk{bytes, memory, a, 0});
  a->chunks.insert(start);
  a->reserved += bytes;
  a->reserved_high = std::max(a->reserved_high, a->reserved);
  add_free(a, start, bytes);
  return CUDA_SUCCESS;
}

bool carve_locked(arena *a, std::size_t footprint, const block &proto, std::size_t bytes,
                  CUdeviceptr *out) {
  const auto fit = a->free_by_size.lower_bound({footprint, 0});
  if (fit == a->free_by_size.end()) return false;
  const auto [size, at] = *fit;
  remove_free(a, a->free_at.find(at));
  if (size > footprint) add_free(a, at + footprint, size - footprint);
  memory_books &b = books();
  block k = proto;
  k.bytes = bytes;
  k.footprint = footprint;
  k.owner = a;
  k.location = a->location;
  k.id = b.next_id++;
  b.blocks.emplace(at, k);
  ++containing(b.chunks, at)->second.live;
  a->used += footprint;
  a->used_high = std::max(a->used_high, a->used);
  *out = at;
  return true;
}

void remove_chunk(std::map<CUdeviceptr, chunk>::iterator it, std::vector<physical *> *dead) {
  arena *a = it->second.owner;
  remove_free(a, a->free_at.find(it->first));  // an empty chunk is one free piece
  a->chunks.erase(it->first);
  a->reserved -= it->second.bytes;
  release_range(as_pointer(it->first), it->second.bytes);
  drop_locked(it->second.memory, dead);
  books().chunks.erase(it);
}

}  // namespace

CUresult arena_allocate(arena *a, std::size_t bytes, const block &proto, CUdeviceptr *out) {
  if (bytes > (std::size_t{1} << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::size_t footprint = round_up(bytes, kAlignment);
  for (;;) {
    {
      exclusive lock(books().mutex);
      if (carve_locked(a, footprint, proto, bytes, out)) return CUDA_SUCCESS;
    }
    // Another thread may take the new chunk first; then there will be another one.
    if (CUresult r = add_chunk(a, round_up(footprint, kGranularity)); r != CUDA_SUCCESS) return r;
  }
}

void arena_free_locked(std::map<CUdeviceptr, block>::iterator it, std::vector<physical *> *dead) {
  memory_books &b = books();
  arena *a = it->second.owner;
  CUdeviceptr at = it->first;
  std::size_t bytes = it->second.footprint;
  const auto home = containing(b.chunks, at);
  b.blocks.erase(it);
  a->used -= bytes;
  const CUdeviceptr home_end = home->first + home->second.bytes;
  if (const auto next = a->free_at.find(at + bytes);
      next != a->free_at.end() && next->first < home_end) {
    bytes += next->second;
    remove_free(a, next);
  }
  if (auto before = a->free_at.lower_bound(at); before != a->free_at.begin()) {
    --before;
    if (before->first + before->second == at && before->first >= home->first) {
      at = before->first;
      bytes += before->second;
      remove_free(a, before);
    }
  }
  add_free(a, at, bytes);
  if (--home->second.live != 0) return;
  if (a->keeps_empty) {
    pool_has_an_empty_chunk();
  } else {
    remove_chunk(home, dead);
  }
}

void arena_trim_locked(arena *a, std::size_t keep, std::vector<physical *> *dead) {
  memory_books &b = books();
  for (auto it = a->chunks.begin(); it != a->chunks.end() && a->reserved > keep;) {
    const auto c = b.chunks.find(*it++);
    if (c->second.live == 0) remove_chunk(c, dead);
  }
}

}  // namespace hostcuda
