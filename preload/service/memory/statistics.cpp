#include "preload/service/memory/statistics.h"

#include "preload/functions/function_list.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/memory/peaks.h"
#include "stillmap/vmm/base/json_writer.h"

namespace stillmap::preload {
namespace {

constexpr auto kinds = static_cast<std::size_t>(passed::count);
constexpr const char *names[kinds] = {"managed",      "arrays",      "own_mappings",
                                      "graph_memory", "other_pools", "not_served"};
constinit std::atomic<std::uint64_t> passed_calls[kinds]{};
constinit std::atomic<std::uint64_t> passed_bytes[kinds]{};

// Why the driver serves what these functions allocate; nullptr: we do.
struct allocating_function {
  function f;
  const char *why_driver;
};
constexpr const char *is_managed = "managed memory moves between host and device by itself";
constexpr const char *is_array = "the layout of arrays is the driver's";
constexpr const char *is_32_bit = "its addresses have 32 bits";
constexpr allocating_function allocating_functions[] = {
    {function::cuMemAlloc, is_32_bit},
    {function::cuMemAlloc_v2, nullptr},
    {function::cuMemAllocPitch, is_32_bit},
    {function::cuMemAllocPitch_v2, nullptr},
    {function::cuMemAllocAsync, nullptr},
    {function::cuMemAllocAsync_ptsz, nullptr},
    {function::cuMemAllocFromPoolAsync, nullptr},
    {function::cuMemAllocFromPoolAsync_ptsz, nullptr},
    {function::cuMemAllocManaged, is_managed},
    {function::cuMemCreate, "the program maps this memory itself"},
    {function::cuArrayCreate_v2, is_array},
    {function::cuArray3DCreate_v2, is_array},
    {function::cuMipmappedArrayCreate, is_array},
};

}  // namespace

void note_passed(passed why, word bytes) noexcept {
  passed_calls[static_cast<std::size_t>(why)].fetch_add(1, std::memory_order_relaxed);
  passed_bytes[static_cast<std::size_t>(why)].fetch_add(bytes, std::memory_order_relaxed);
}

bool any_allocation() noexcept {
  bool any = false;
  heaps::each([&](caching_allocator &) { any = true; });
  for (const auto &calls : passed_calls) any = any || calls.load(std::memory_order_relaxed) != 0;
  return any;
}

std::string describe_program() {
  json_writer out;
  out.begin_object().begin_array("devices");
  heaps::each([&](caching_allocator &heap) {
    const caching_allocator_stats s = heap.stats();
    const memory_peaks peaks = peaks_of(heap, peaks_since::start);
    out.begin_record()
        .field("ordinal", heap.device().ordinal())
        .field("name", heap.device().name())
        .field("allocations", s.total.allocations)
        .field("frees", s.total.frees)
        .field("live_bytes", s.total.live)
        .field("live_peak_bytes", peaks.live)
        .field("committed_peak_bytes", peaks.committed)
        .field("pages_created", s.pages_created)
        .field("pages_moved", s.pages_moved)
        .field("page_bytes", s.page_bytes)
        .field("out_of_memory", s.out_of_memory)
        .end();
  });
  out.end().begin_object("passed_on");
  for (std::size_t i = 0; i < kinds; ++i) {
    out.begin_record(names[i])
        .field("calls", passed_calls[i].load(std::memory_order_relaxed))
        .field("bytes", passed_bytes[i].load(std::memory_order_relaxed))
        .end();
  }
  out.end().begin_array("functions");
  for (const allocating_function &a : allocating_functions) {
    if (next_of(a.f) == nullptr) continue;  // the program has not looked for it
    out.begin_record()
        .field("function", symbol_of(a.f))
        .field("served_by", a.why_driver == nullptr ? "stillmap" : "driver")
        .field("because", a.why_driver == nullptr ? "it allocates device memory" : a.why_driver)
        .end();
  }
  out.end().end();
  return std::move(out).text();
}

}  // namespace stillmap::preload
