#include "preload/service/memory/statistics.h"

#include "preload/functions/function_list.h"
#include "preload/service/memory/device_memory.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/memory/peaks.h"
#include "preload/service/settings.h"
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

// Where the program has allocated there.
void describe_device(json_writer &out, int ordinal) {
  caching_allocator *const heap = heaps::of_device(ordinal);
  device_memory *const memory = device_memory::of(ordinal);
  const auto served = memory != nullptr ? memory->served() : device_memory::served_figures();
  if (heap == nullptr && served.allocations + served.out_of_memory == 0) return;
  const caching_allocator_stats s = heap != nullptr ? heap->stats() : caching_allocator_stats();
  const memory_peaks peaks = heap != nullptr ? peaks_of(*heap, peaks_since::start) : memory_peaks();
  out.begin_record().field("ordinal", ordinal);
  if (heap != nullptr) out.field("name", heap->device().name());
  out.field("allocations", s.total.allocations)
      .field("frees", s.total.frees)
      .field("live_bytes", s.total.live)
      .field("live_peak_bytes", peaks.live)
      .field("committed_peak_bytes", peaks.committed)
      .field("pages_created", s.pages_created)
      .field("pages_moved", s.pages_moved)
      .field("page_bytes", s.page_bytes)
      .field("out_of_memory", s.out_of_memory)
      .field("driver_allocations", served.allocations)
      .field("driver_frees", served.frees)
      .field("driver_live_bytes", served.live)
      .field("driver_live_peak_bytes", served.live_peak)
      .field("driver_out_of_memory", served.out_of_memory)
      .end();
}

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
  for (int i = 0; i < device_memory::most_devices; ++i) describe_device(out, i);
  out.end().begin_object("passed_on");
  for (std::size_t i = 0; i < kinds; ++i) {
    out.begin_record(names[i])
        .field("calls", passed_calls[i].load(std::memory_order_relaxed))
        .field("bytes", passed_bytes[i].load(std::memory_order_relaxed))
        .end();
  }
  out.end().begin_array("functions");
  const bool nothing_served = given_settings().allocator == allocator_kind::driver;
  for (const allocating_function &a : allocating_functions) {
    if (next_of(a.f) == nullptr) continue;  // the program has not looked for it
    const char *const why = a.why_driver != nullptr ? a.why_driver
                            : nothing_served        ? "so it was asked for"
                                                    : nullptr;
    out.begin_record()
        .field("function", symbol_of(a.f))
        .field("served_by", why == nullptr ? "stillmap" : "driver")
        .field("because", why == nullptr ? "it allocates device memory" : why)
        .end();
  }
  out.end().end();
  return std::move(out).text();
}

}  // namespace stillmap::preload
