#include "python/src/torch.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "python/src/allocator.h"
#include "python/src/errors.h"
#include "python/src/memory_map.h"
#include "stillmap/allocators/torch/internal/tagged_heaps.h"
#include "stillmap/vmm/internal/host_memory.h"

namespace stillmap::python {
namespace {

using torch_plugin::torch_heaps;

torch_plugin::settings settings_of(const std::string &tag, std::optional<std::size_t> limit,
                                   bool peers, std::size_t page_size = 0) {
  torch_plugin::settings s;
  s.tag = tag;
  s.limit = limit.value_or(SIZE_MAX);
  s.peers = peers;
  s.page_bytes = page_size;
  return s;
}

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
      [](const std::string &tag, std::optional<std::size_t> limit, bool peers,
         std::size_t page_size) {
        check(with_host_memory("stillmap.torch.use", [&] {
          return torch_plugin::configure_heaps(settings_of(tag, limit, peers, page_size));
        }));
      },
      nb::arg("tag"), nb::arg("limit").none(), nb::arg("peers"), nb::arg("page_size"),
      "Settings of stillmap_malloc's heaps. Raises BusyError once one of them exists.");
  m.def(
      "_torch_pool",
      [](const std::string &tag, std::optional<std::size_t> limit, bool peers) {
        const auto f = value_of(torch_plugin::functions_of_tag(settings_of(tag, limit, peers)));
        return nb::make_tuple(reinterpret_cast<std::uintptr_t>(f.allocate),
                              reinterpret_cast<std::uintptr_t>(f.free));
      },
      nb::arg("tag"), nb::arg("limit").none(), nb::arg("peers"),
      "The addresses of the two functions that serve the MemPools of a tag.");
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
