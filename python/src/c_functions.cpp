// The functions that C code calls with an allocator's c_param: CuPy's CFunctionAllocator and the like.
#include <cstdint>

#include "python/src/allocator.h"
#include "stillmap/allocators/torch/internal/last_error.h"
#include "stillmap/vmm/internal/host_memory.h"

namespace stillmap::python {
namespace {

error wrong(const char *operation, const char *reason, std::uint64_t value = 0) {
  return error{make_error_code(errc::invalid_argument), operation, reason, value};
}

// Threads, streams: any thread; blocks are for the legacy default stream.
// Errors: NULL, and stillmap.last_error() has the reason; NULL for 0 bytes, too.
void *c_malloc(void *param, std::size_t bytes, int device) noexcept {
  constexpr const char *op = "CachingAllocator.c_malloc";
  auto *const to = static_cast<c_allocator *>(param);
  const auto heap = to != nullptr ? to->heap.load() : nullptr;
  if (!heap || device != to->device) {
    torch_plugin::remember_error(heap ? wrong(op, "the allocator belongs to another device",
                                              static_cast<std::uint64_t>(device))
                                      : wrong(op, "the allocator is closed"));
    return nullptr;
  }
  const auto block =
      with_host_memory(op, [&] { return heap->allocate(bytes, stream_ref::legacy()); });
  if (block) return *block;
  torch_plugin::remember_error(block.error());
  return nullptr;
}

// A block of a closed allocator is gone already, and one in a forked child is the parent's.
void c_free(void *param, void *block, int) noexcept {
  auto *const to = static_cast<c_allocator *>(param);
  const auto heap = to != nullptr ? to->heap.load() : nullptr;
  if (!heap || forked_after_use()) return;
  if (const status freed = heap->free(block); !freed) {
    torch_plugin::remember_error(freed.error());
    report_background_error(freed.error());
  }
}

}  // namespace

std::uint64_t c_malloc_address() {
  return reinterpret_cast<std::uintptr_t>(&c_malloc);
}
std::uint64_t c_free_address() {
  return reinterpret_cast<std::uintptr_t>(&c_free);
}

}  // namespace stillmap::python
