// Writes the JSON of docs/heap_map.md.
#include <set>
#include <utility>

#include "stillmap/allocators/report/heap_report.h"
#include "stillmap/allocators/report/internal/text_out.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/json_writer.h"

namespace stillmap {
namespace {

void address(json_writer &json, const char *key, std::uint64_t at) {
  json.field(key, text::hex(at));
}

void write(json_writer &json, const heap_figures &f) {
  json.begin_record("figures");
  json.field("live", f.live).field("requested", f.requested).field("blocks", f.blocks);
  json.field("cached", f.cached).field("pending_free", f.pending_free);
  json.field("free", f.free).field("committed", f.committed);
  json.field("free_pieces", f.free_pieces).field("largest_free", f.largest_free);
  json.field("free_whole_pages", f.free_whole_pages).field("page_edges", f.page_edges);
  json.field("uncommitted", f.uncommitted).field("unmapping", f.unmapping);
  json.field("aliased", f.aliased).field("reserved", f.reserved).end();
}

void write(json_writer &json, const caching_allocator_stats &s) {
  json.begin_record("stats");
  const arena_stats &t = s.total;
  json.field("live", t.live).field("live_peak", t.live_peak).field("requested", t.requested);
  json.field("blocks", t.blocks).field("pending_free", t.pending_free);
  json.field("committed", t.committed).field("committed_peak", s.committed_peak);
  json.field("reserved", t.reserved).field("aliased", t.aliased).field("cached", t.cached);
  json.field("free_whole_pages", t.free_whole_pages).field("page_edges", t.page_edges);
  json.field("allocations", t.allocations).field("frees", t.frees);
  json.field("growths", s.growths).field("pages_created", s.pages_created);
  json.field("pages_moved", s.pages_moved).field("pages_recalled", s.pages_recalled);
  json.field("pages_released", s.pages_released).field("host_waits", s.host_waits);
  json.field("out_of_memory", s.out_of_memory).field("created_ahead", s.created_ahead);
  json.field("host_bytes", s.host_bytes).end();
}

void write(json_writer &json, const heap_extent &s) {
  json.begin_record();
  address(json, "address", s.range.begin.value());
  json.field("bytes", s.range.bytes).field("part", name_of(s.part));
  if (s.part == heap_part::live) json.field("requested", s.requested);
  if (s.in_slab) json.field("slab", true);
  json.end();
}

void write(json_writer &json, const heap_map::arena &a, std::size_t page_bytes) {
  json.begin_object().field("id", a.id);
  address(json, "stream", text::handle_of(a.stream));
  if (a.pool != 0) json.field("pool", a.pool);
  json.field("name", a.name);
  write(json, figures_of(a, page_bytes));
  json.begin_array("reserved");
  for (const virtual_range &r : a.reserved) {
    json.begin_record();
    address(json, "address", r.begin.value());
    json.field("bytes", r.bytes).end();
  }
  json.end().begin_array("extents");
  for (const heap_extent &s : a.extents) write(json, s);
  json.end().end();
}

void write(json_writer &json, const allocation_history &h, const history_event &e) {
  json.begin_record();
  json.field("action", name_of(e.action)).field("time_ns", e.time_ns);
  if (e.address != 0) address(json, "address", e.address);
  if (e.from != 0) address(json, "from", e.from);
  if (e.action != history_action::snapshot) {
    json.field("bytes", e.bytes);
    address(json, "stream", text::handle_of(e.stream));
  }
  if (e.usable != 0) json.field("usable", e.usable);
  if (e.action == history_action::out_of_memory) json.field("available", e.available);
  if (e.frames != 0) {
    json.begin_array("stack");
    for (const void *at : h.stack_of(e)) {
      json.element(text::hex(reinterpret_cast<std::uintptr_t>(at)));
    }
    json.end();
  }
  json.end();
}

void write(json_writer &json, const allocation_history &h) {
  json.begin_object("history").field("recorded", h.recorded).field("lost", h.lost);
  json.field("capacity", h.options.events).field("stack_depth", h.options.stack_depth);
  json.begin_array("events");
  for (const history_event &e : h.events) write(json, h, e);
  json.end().begin_array("frames");
  const std::set<const void *> seen(h.frames.begin(), h.frames.end());
  for (const void *at : seen) {
    const stack_frame f = describe_frame(at);
    json.begin_record();
    address(json, "address", reinterpret_cast<std::uintptr_t>(at));
    json.field("function", f.function).field("module", f.module).field("offset", f.offset).end();
  }
  json.end().end();
}

std::string written(const heap_snapshot &s) {
  json_writer json;
  json.begin_object().field("format", "stillmap-heap-map").field("version", 1);
  json.begin_record("device").field("name", s.device).field("ordinal", s.ordinal).end();
  json.field("page_bytes", s.map.page_bytes);
  write(json, figures_of(s.map));
  if (s.stats) write(json, *s.stats);
  json.begin_array("arenas");
  for (const heap_map::arena &a : s.map.arenas) write(json, a, s.map.page_bytes);
  json.end();
  if (s.history.recorded != 0) write(json, s.history);
  json.end();
  return std::move(json).text();
}

}  // namespace

result<std::string> to_json(const heap_snapshot &s) {
  return with_host_memory("to_json", [&]() -> result<std::string> { return written(s); });
}

}  // namespace stillmap
