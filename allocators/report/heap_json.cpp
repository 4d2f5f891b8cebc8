// Writes the JSON of docs/heap_map.md.
#include <set>
#include <string_view>

#include "stillmap/allocators/report/heap_report.h"
#include "stillmap/allocators/report/internal/text_out.h"
#include "stillmap/vmm/base/host_memory.h"

namespace stillmap {
namespace {

using text::json;

// The fields of one JSON object, on one line.
class fields {
 public:
  explicit fields(std::string &out) : out_(out) { out_ += '{'; }
  fields &add(const char *key, std::uint64_t number) {
    begin(key);
    out_ += std::to_string(number);
    return *this;
  }
  fields &add(const char *key, std::string_view plain) {
    begin(key);
    out_ += json(plain);
    return *this;
  }
  fields &address(const char *key, std::uint64_t at) { return add(key, text::hex(at)); }
  void begin(const char *key) {
    if (!first_) out_ += ", ";
    first_ = false;
    out_ += json(key) + ": ";
  }
  void end() { out_ += '}'; }

 private:
  std::string &out_;
  bool first_ = true;
};

// "key": [ one element on each line ]
template <class Range, class Write>
void list(std::string &out, const char *indent, const char *key, const Range &range, Write write) {
  out += indent + json(key) + ": [";
  bool first = true;
  for (const auto &element : range) {
    out += first ? "\n" : ",\n";
    first = false;
    out.append(indent).append("  ");
    write(element);
  }
  if (!first) out.append("\n").append(indent);
  out += ']';
}

void write(std::string &out, const heap_figures &f) {
  fields o(out);
  o.add("live", f.live).add("requested", f.requested).add("blocks", f.blocks);
  o.add("cached", f.cached).add("pending_free", f.pending_free);
  o.add("free", f.free).add("committed", f.committed);
  o.add("free_pieces", f.free_pieces).add("largest_free", f.largest_free);
  o.add("free_whole_pages", f.free_whole_pages).add("page_edges", f.page_edges);
  o.add("uncommitted", f.uncommitted).add("unmapping", f.unmapping).add("aliased", f.aliased);
  o.add("reserved", f.reserved).end();
}

void write(std::string &out, const caching_allocator_stats &s) {
  fields o(out);
  const arena_stats &t = s.total;
  o.add("live", t.live).add("live_peak", t.live_peak).add("requested", t.requested);
  o.add("blocks", t.blocks).add("pending_free", t.pending_free);
  o.add("committed", t.committed).add("committed_peak", s.committed_peak);
  o.add("reserved", t.reserved).add("aliased", t.aliased).add("cached", t.cached);
  o.add("free_whole_pages", t.free_whole_pages).add("page_edges", t.page_edges);
  o.add("allocations", t.allocations).add("frees", t.frees);
  o.add("growths", s.growths).add("pages_created", s.pages_created);
  o.add("pages_moved", s.pages_moved).add("pages_recalled", s.pages_recalled);
  o.add("pages_released", s.pages_released).add("host_waits", s.host_waits);
  o.add("out_of_memory", s.out_of_memory).add("created_ahead", s.created_ahead);
  o.add("host_bytes", s.host_bytes).end();
}

void write(std::string &out, const heap_extent &s) {
  fields o(out);
  o.address("address", s.range.begin.value()).add("bytes", s.range.bytes);
  o.add("part", std::string_view(name_of(s.part)));
  if (s.part == heap_part::live) o.add("requested", s.requested);
  if (s.in_slab) {
    o.begin("slab");
    out += "true";
  }
  o.end();
}

void write(std::string &out, const heap_map::arena &a, std::size_t page_bytes) {
  out += "{\n      \"id\": " + std::to_string(a.id);
  out += ",\n      \"stream\": " + json(text::hex(text::handle_of(a.stream)));
  if (a.pool != 0) out += ",\n      \"pool\": " + std::to_string(a.pool);
  out += ",\n      \"name\": " + json(a.name);
  out += ",\n      \"figures\": ";
  write(out, figures_of(a, page_bytes));
  out += ",\n";
  list(out, "      ", "reserved", a.reserved, [&](const virtual_range &r) {
    fields o(out);
    o.address("address", r.begin.value()).add("bytes", r.bytes).end();
  });
  out += ",\n";
  list(out, "      ", "extents", a.extents, [&](const heap_extent &s) { write(out, s); });
  out += "\n    }";
}

void write(std::string &out, const allocation_history &h, const history_event &e) {
  fields o(out);
  o.add("action", std::string_view(name_of(e.action))).add("time_ns", e.time_ns);
  if (e.address != 0) o.address("address", e.address);
  if (e.from != 0) o.address("from", e.from);
  if (e.action != history_action::snapshot) {
    o.add("bytes", e.bytes).address("stream", text::handle_of(e.stream));
  }
  if (e.usable != 0) o.add("usable", e.usable);
  if (e.action == history_action::out_of_memory) o.add("available", e.available);
  if (e.frames != 0) {
    o.begin("stack");
    out += '[';
    for (const void *at : h.stack_of(e)) {
      if (out.back() != '[') out += ", ";
      out += json(text::hex(reinterpret_cast<std::uintptr_t>(at)));
    }
    out += ']';
  }
  o.end();
}

void write(std::string &out, const allocation_history &h) {
  out += "{\n    \"recorded\": " + std::to_string(h.recorded);
  out += ",\n    \"lost\": " + std::to_string(h.lost);
  out += ",\n    \"capacity\": " + std::to_string(h.options.events);
  out += ",\n    \"stack_depth\": " + std::to_string(h.options.stack_depth) + ",\n";
  list(out, "    ", "events", h.events, [&](const history_event &e) { write(out, h, e); });
  out += ",\n";
  const std::set<const void *> seen(h.frames.begin(), h.frames.end());
  list(out, "    ", "frames", seen, [&](const void *at) {
    const stack_frame f = describe_frame(at);
    fields o(out);
    o.address("address", reinterpret_cast<std::uintptr_t>(at)).add("function", f.function);
    o.add("module", f.module).add("offset", f.offset).end();
  });
  out += "\n  }";
}

std::string written(const heap_snapshot &s) {
  std::string out = "{\n  \"format\": \"stillmap-heap-map\",\n  \"version\": 1,\n  \"device\": ";
  fields device(out);
  device.add("name", s.device).add("ordinal", static_cast<std::uint64_t>(s.ordinal)).end();
  out += ",\n  \"page_bytes\": " + std::to_string(s.map.page_bytes) + ",\n  \"figures\": ";
  write(out, figures_of(s.map));
  if (s.stats) {
    out += ",\n  \"stats\": ";
    write(out, *s.stats);
  }
  out += ",\n";
  list(out, "  ", "arenas", s.map.arenas,
       [&](const heap_map::arena &a) { write(out, a, s.map.page_bytes); });
  if (s.history.recorded != 0) {
    out += ",\n  \"history\": ";
    write(out, s.history);
  }
  return out + "\n}\n";
}

}  // namespace

result<std::string> to_json(const heap_snapshot &s) {
  return with_host_memory("to_json", [&]() -> result<std::string> { return written(s); });
}

}  // namespace stillmap
