// The functions that C code calls: with an allocator's c_param, as CuPy's CFunctionAllocator does, or with
// nothing that says which allocator is meant, as ONNX Runtime does.
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "python/src/allocator.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "stillmap/allocators/torch/internal/last_error.h"
#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::python {
namespace {

error wrong(const char *operation, const char *reason, std::uint64_t value = 0) {
  return error{make_error_code(errc::invalid_argument), operation, reason, value};
}

// Null: there is no allocator, or it is closed.
std::shared_ptr<caching_allocator> heap_of(const c_allocator *of) {
  return of != nullptr ? of->heap.load() : nullptr;
}

// For calls that return nothing.
void report(const error &e) noexcept {
  torch_plugin::remember_error(e);
  report_background_error(e);
}

// Threads, streams: any thread; blocks are for the legacy default stream.
// Errors: NULL, and stillmap.last_error() has the reason; NULL for 0 bytes, too.
void *c_malloc(void *param, std::size_t bytes, int device) noexcept {
  constexpr const char *op = "CachingAllocator.c_malloc";
  const auto *const to = static_cast<const c_allocator *>(param);
  const auto heap = heap_of(to);
  if (!heap || device != to->device) {
    torch_plugin::remember_error(heap ? wrong(op, "the allocator belongs to another device",
                                              static_cast<std::uint64_t>(device))
                                      : wrong(op, "the allocator is closed"));
    return nullptr;
  }
  // A reclaimer of this process may need the GIL before others give what the request waits for.
  std::optional<released_gil> released;
  if (to->may_wait && has_gil()) released.emplace();
  const auto block =
      with_host_memory(op, [&] { return heap->allocate(bytes, stream_ref::legacy()); });
  if (block) return *block;
  torch_plugin::remember_error(block.error());
  return nullptr;
}

// A block of a closed allocator is gone already, and one in a forked child is the parent's.
void c_free(void *param, void *block, int) noexcept {
  const auto heap = heap_of(static_cast<const c_allocator *>(param));
  if (!heap || forked_after_use()) return;
  if (const status freed = heap->free(block); !freed) report(freed.error());
}

void c_empty_cache(const c_allocator *of) noexcept {
  const auto heap = heap_of(of);
  if (!heap || forked_after_use()) return;
  const auto released =
      with_host_memory("CachingAllocator.c_functions", [&] { return heap->empty_cache(); });
  if (!released) report(released.error());
}

// ---- functions without a parameter: each set is of one allocator, for ever ----

constexpr std::size_t sets = 64;
std::array<std::atomic<c_allocator *>, sets> allocator_of_set;  // before its addresses are given

template <std::size_t Set>
struct functions {
  static void *allocate(std::size_t bytes) {
    c_allocator *const to = allocator_of_set[Set].load();
    return c_malloc(to, bytes, to->device);
  }
  static void free(void *block) { c_free(allocator_of_set[Set].load(), block, 0); }
  static void empty_cache() { c_empty_cache(allocator_of_set[Set].load()); }
};

template <std::size_t... Set>
constexpr auto make_sets(std::index_sequence<Set...>) {
  struct pointers {
    void *(*allocate)(std::size_t);
    void (*free)(void *);
    void (*empty_cache)();
  };
  return std::array<pointers, sets>{
      pointers{&functions<Set>::allocate, &functions<Set>::free, &functions<Set>::empty_cache}...};
}

}  // namespace

std::uint64_t c_malloc_address() {
  return reinterpret_cast<std::uintptr_t>(&c_malloc);
}
std::uint64_t c_free_address() {
  return reinterpret_cast<std::uintptr_t>(&c_free);
}

c_function_addresses c_functions_of(c_allocator &of) {
  static constexpr auto all = make_sets(std::make_index_sequence<sets>());
  static std::size_t used = 0;
  if (of.set == c_allocator::no_set) {
    if (used == sets) {
      raise(error{make_error_code(errc::not_supported), "CachingAllocator.c_functions",
                  "the process has given all its functions to other allocators: several sessions "
                  "can share one",
                  sets + 1, sets, error_unit::items});
    }
    allocator_of_set[used].store(&of);
    of.set = used++;
  }
  const auto address = [](auto *function) { return reinterpret_cast<std::uintptr_t>(function); };
  const auto &set = all[of.set];
  return {address(set.allocate), address(set.free), address(set.empty_cache)};
}

}  // namespace stillmap::python
