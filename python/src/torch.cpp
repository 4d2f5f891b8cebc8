#include "python/src/torch.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "python/src/allocator.h"
#include "python/src/errors.h"
#include "python/src/memory_map.h"
#include "stillmap/allocators/torch/internal/device_copies.h"
#include "stillmap/allocators/torch/internal/exact_segments.h"
#include "stillmap/allocators/torch/internal/pool_refusal.h"
#include "stillmap/allocators/torch/internal/tagged_heaps.h"
#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::python {
namespace {

using torch_plugin::torch_heaps;

// The heap of a tag's pool, or without a tag that of stillmap_malloc; nullptr: it was not used.
caching_allocator *heap_of(const std::optional<std::string> &tag, int device) {
  const torch_heaps *const heaps =
      tag ? torch_plugin::heaps_of_tag(*tag) : torch_plugin::known_heaps();
  return heaps != nullptr && !heaps->forked() ? heaps->known(device) : nullptr;
}

nb::object stats_of(const std::optional<std::string> &tag, int device) {
  caching_allocator *const heap = heap_of(tag, device);
  if (heap == nullptr) return nb::none();
  const caching_allocator_stats s = without_gil([&] { return heap->stats(); });
  return dict_of_stats(s, heap->limit());
}

nb::object map_of_heap(const std::optional<std::string> &tag, int device) {
  const caching_allocator *const heap = heap_of(tag, device);
  if (heap == nullptr) return nb::none();
  return nb::cast(value_of(without_gil([&] { return map_of(*heap, tag.value_or("torch")); })));
}

}  // namespace

void bind_torch(nb::module_ &m) {
  m.def(
      "_torch_configure",
      [](const std::string &tag, std::optional<std::size_t> limit, std::optional<bool> peers,
         std::optional<std::size_t> page_size, const std::optional<std::string> &share,
         std::optional<std::uint64_t> share_limit, std::optional<bool> exportable) {
        const operation_scope scope("stillmap.torch.use");
        const auto shares = share_of("stillmap.torch.use", share, share_limit);
        const auto s = value_of(
            torch_plugin::read_settings({limit, peers, tag, page_size, shares, exportable}));
        check(with_host_memory([&] { return torch_plugin::configure_heaps(s); }));
      },
      nb::arg("tag"), nb::arg("limit").none(), nb::arg("peers").none(), nb::arg("page_size").none(),
      nb::arg("share").none(), nb::arg("share_limit").none(),
      nb::arg("exportable").none() = nb::none(),
      "Settings of stillmap_malloc's heaps. Raises BusyError once one of them exists.");
  m.def(
      "_torch_pool",
      [](const std::string &tag, std::optional<std::size_t> limit, std::optional<bool> peers,
         const std::optional<std::string> &share, std::optional<std::uint64_t> share_limit,
         std::optional<bool> exportable) {
        const operation_scope scope("stillmap.torch.pool");
        const auto shares = share_of("stillmap.torch.pool", share, share_limit);
        const auto s = value_of(
            torch_plugin::read_settings({limit, peers, tag, std::nullopt, shares, exportable}));
        const auto f = value_of(torch_plugin::functions_of_tag(s));
        return nb::make_tuple(reinterpret_cast<std::uintptr_t>(f.allocate),
                              reinterpret_cast<std::uintptr_t>(f.free));
      },
      nb::arg("tag"), nb::arg("limit").none(), nb::arg("peers").none(), nb::arg("share").none(),
      nb::arg("share_limit").none(), nb::arg("exportable").none() = nb::none(),
      "The addresses of the two functions that serve the MemPools of a tag.");
  m.def(
      "_torch_owns",
      [](const std::string &tag, int device, std::uintptr_t address) {
        const caching_allocator *const heap = heap_of(tag, device);
        return heap != nullptr && heap->owns(reinterpret_cast<const void *>(address));
      },
      nb::arg("tag"), nb::arg("device"), nb::arg("address"), "CachingAllocator.owns of a heap.");
  m.def(
      "_torch_route_copies", [](bool all_peers) { check(torch_plugin::route_copies(all_peers)); },
      nb::arg("all_peers"),
      "Lets PyTorch copy between devices that cannot access each other's memory.");
  m.def(
      "_torch_begin_exact",
      [](torch_plugin::mempool_id pool, int device, std::uintptr_t allocator, bool all_threads) {
        check(torch_plugin::begin_exact(pool, device, reinterpret_cast<void *>(allocator),
                                        all_threads));
      },
      nb::arg("pool"), nb::arg("device"), nb::arg("allocator"), nb::arg("all_threads"),
      "Before PyTorch begins to allocate to a pool: large tensors get segments of their own size.");
  m.def(
      "_torch_end_exact",
      [](torch_plugin::mempool_id pool, int device) { torch_plugin::end_exact(pool, device); },
      nb::arg("pool"), nb::arg("device"), "After PyTorch has ended to allocate to the pool.");
  m.def(
      "_torch_release_exact",
      [](const std::string &tag, int device) {
        without_gil([&] {
          torch_plugin::release_exact();
          if (caching_allocator *const heap = heap_of(tag, device)) {
            static_cast<void>(heap->empty_cache());
          }
        });
      },
      nb::arg("tag"), nb::arg("device"),
      "Gives segments without a tensor, and what the heap keeps, back to the device.");
  m.def("_torch_exact_pools", &torch_plugin::exact_pools_of, nb::arg("pool"),
        "PyTorch's private pools for the large tensors of a pool.");
  m.def(
      "_torch_exact_bytes",
      [](std::uintptr_t address) {
        return torch_plugin::exact_bytes_at(reinterpret_cast<const void *>(address));
      },
      nb::arg("address"), "The size of a segment for one tensor; 0: none begins there.");
  m.def(
      "_torch_take_refusal", [] { return torch_plugin::take_refusal(); },
      "Why a pool refused the request that PyTorch reports next; \"\" if none did.");
  m.def("_torch_stats", &stats_of, nb::arg("tag").none(), nb::arg("device"),
        "CachingAllocator.stats of a heap; None before its first allocation.");
  m.def(
      "_torch_reset_peaks",
      [](const std::optional<std::string> &tag, int device) {
        caching_allocator *const heap = heap_of(tag, device);
        if (heap != nullptr) without_gil([&] { heap->reset_peaks(); });
      },
      nb::arg("tag").none(), nb::arg("device"), "CachingAllocator.reset_peaks of a heap.");
  m.def("_torch_memory_map", &map_of_heap, nb::arg("tag").none(), nb::arg("device"),
        "CachingAllocator.memory_map of a heap; None before its first allocation.");
}

}  // namespace stillmap::python
