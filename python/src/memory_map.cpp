#include "python/src/memory_map.h"

#include <nanobind/stl/string.h>

#include <set>

#include "python/src/devices.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/paths.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

// One row for each block of addresses: what is mapped, what is mapped a second time, what is empty.
result<memory_map> map_of_device(int ordinal) {
  STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
  heap_snapshot heap;
  heap.device = d.name();
  heap.ordinal = ordinal;
  heap.map.page_bytes = d.capabilities().vmm ? d.capabilities().page_bytes : 0;
  std::set<std::uint64_t> seen;     // pages
  std::set<std::string> suspended;  // tags
  std::uint64_t id = 0;
  for (const block_record &block : d.space().blocks()) {
    heap_map::arena arena;
    arena.id = ++id;
    arena.name = block.tag.empty() ? "(no tag)" : block.tag;
    // A heap without memory is not drawn: the subtitle names it.
    if (block.suspended_bytes != 0) suspended.insert(arena.name);
    arena.reserved.push_back(block.range);
    device_address at = block.range.begin;
    const auto add = [&](device_address end, heap_part part) {
      if (end <= at) return;
      const std::size_t bytes = end - at;
      arena.extents.push_back({{at, bytes}, part, part == heap_part::live ? bytes : 0, false});
      at = end;
    };
    for (const mapping_record &mapping : d.space().mappings(block.range)) {
      if (mapping.suspended_by != 0) continue;
      add(mapping.range.begin, heap_part::uncommitted);
      heap_part part = heap_part::live;
      if (mapping.state == mapping_state::retiring) {
        part = heap_part::unmapping;
      } else if (mapping.backing && !seen.insert(mapping.backing->id()).second) {
        part = heap_part::aliased;
      }
      add(mapping.range.end(), part);
    }
    add(block.range.end(), heap_part::uncommitted);
    heap.map.arenas.push_back(std::move(arena));
  }
  std::string subtitle;
  for (const std::string &tag : suspended)
    subtitle += (subtitle.empty() ? "suspended: " : ", ") + tag;
  return memory_map("Memory of device " + std::to_string(ordinal), std::move(subtitle),
                    std::move(heap), d.total_memory().bytes());
}

result<std::string> contents_for(const memory_map &map, const std::string &path) {
  if (path.ends_with(".svg")) return map.svg();
  if (path.ends_with(".html")) return map.html();
  if (path.ends_with(".json")) return map.json();
  if (path.ends_with(".pickle")) return map.pickle();
  return tl::unexpected<error>(error{make_error_code(errc::invalid_argument), "MemoryMap.save",
                                     "the name ends with none of .svg, .html, .json and .pickle"}
                                   .about(path));
}

status save_map(const memory_map &map, const std::string &path) {
  STILLMAP_ASSIGN_OR_RETURN(const std::string contents, contents_for(map, path));
  return write_file("MemoryMap.save", path, contents);
}

}  // namespace

heap_picture memory_map::picture() const {
  heap_picture picture;
  picture.title = title_;
  picture.subtitle = subtitle_;
  picture.columns.push_back({heap_.device, "", heap_.map, capacity_, 0});
  return picture;
}

result<std::string> memory_map::svg() const {
  return to_svg(picture());
}
result<std::string> memory_map::html() const {
  return to_html(picture());
}
result<std::string> memory_map::json() const {
  return to_json(heap_);
}
result<std::string> memory_map::pickle() const {
  return to_torch_pickle(heap_);
}

result<memory_map> map_of(const caching_allocator &heap, const std::string &tag) {
  STILLMAP_ASSIGN_OR_RETURN(heap_snapshot snapshot, snapshot_of(heap));
  const std::size_t limit = heap.limit();
  const std::size_t memory = heap.device().total_memory().bytes();
  return memory_map(tag, "", std::move(snapshot), limit < memory ? limit : memory);
}

void bind_memory_map(nb::module_ &m) {
  nb::class_<memory_map>(
      m, "MemoryMap", nb::is_final(),
      "A heap at one moment. A value: it owns no device memory. A notebook draws it.")
      .def(
          "to_svg",
          [](const memory_map &map) { return string_of(without_gil([&] { return map.svg(); })); },
          "An SVG document, for light and dark pages.")
      .def("_repr_svg_",
           [](const memory_map &map) { return string_of(without_gil([&] { return map.svg(); })); })
      .def(
          "to_html",
          [](const memory_map &map) { return string_of(without_gil([&] { return map.html(); })); },
          "An HTML page that shows what each piece is. It loads nothing.")
      .def(
          "to_json",
          [](const memory_map &map) { return string_of(without_gil([&] { return map.json(); })); },
          "The map as JSON: docs/heap_map.md.")
      .def(
          "save",
          [](const memory_map &map, nb::handle path) {
            const std::string file = path_of(path);
            check(without_gil([&] { return save_map(map, file); }));
          },
          nb::arg("path"),
          "Writes a file: .svg, .html, .json, or .pickle, which pytorch.org/memory_viz reads.\n"
          "Raises InvalidArgumentError for another suffix, OSError.")
      .def(
          "figures",
          [](const memory_map &map) {
            const heap_figures f = map.figures();
            nb::dict d;
            d["live"] = f.live;
            d["cached"] = f.cached;
            d["pending_free"] = f.pending_free;
            d["free"] = f.free;
            d["committed"] = f.committed;
            d["uncommitted"] = f.uncommitted;
            d["unmapping"] = f.unmapping;
            d["aliased"] = f.aliased;
            d["reserved"] = f.reserved;
            d["blocks"] = f.blocks;
            d["largest_free"] = f.largest_free;
            return d;
          },
          "Sums over the map, in bytes.")
      .def("__repr__", [](const memory_map &map) {
        return "<stillmap.MemoryMap of " + map.title() + ": " +
               std::to_string(map.figures().committed) + " bytes committed>";
      });
  m.def(
      "memory_map",
      [](int ordinal) { return value_of(without_gil([&] { return map_of_device(ordinal); })); },
      nb::arg("device") = 0,
      "All of Stillmap's memory on a device by tag. An allocator's memory_map() shows its blocks.");
}

}  // namespace stillmap::python
