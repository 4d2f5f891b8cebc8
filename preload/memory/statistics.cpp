#include "preload/memory/statistics.h"

#include <algorithm>

#include "preload/memory/heaps.h"
#include "stillmap/vmm/base/json_writer.h"

namespace stillmap::preload {
namespace {

constexpr auto kinds = static_cast<std::size_t>(passed::count);
constexpr const char *names[kinds] = {"managed",      "arrays",      "own_mappings",
                                      "graph_memory", "other_pools", "not_served"};
constinit std::atomic<std::uint64_t> passed_calls[kinds]{};
constinit std::atomic<std::uint64_t> passed_bytes[kinds]{};

}  // namespace

void note_passed(passed why, word bytes) noexcept {
  passed_calls[static_cast<std::size_t>(why)].fetch_add(1, std::memory_order_relaxed);
  passed_bytes[static_cast<std::size_t>(why)].fetch_add(bytes, std::memory_order_relaxed);
}

std::string describe_program() {
  json_writer out;
  out.begin_object().begin_array("devices");
  heaps::each([&](caching_allocator &heap) {
    const caching_allocator_stats s = heap.stats();
    out.begin_record()
        .field("ordinal", heap.device().ordinal())
        .field("name", heap.device().name())
        .field("allocations", s.total.allocations)
        .field("frees", s.total.frees)
        .field("live_bytes", s.total.live)
        .field("live_peak_bytes", s.total.live_peak)
        .field("committed_peak_bytes", std::max(s.committed_peak, s.total.committed))
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
  out.end().end();
  return std::move(out).text();
}

}  // namespace stillmap::preload
