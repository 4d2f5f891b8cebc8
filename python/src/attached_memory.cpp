// The classes AttachedMemory and AttachedRange.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <vector>

#include "python/src/devices.h"
#include "python/src/publication.h"
#include "python/src/streams.h"
#include "python/src/text.h"
#include "stillmap/vmm/address_space.h"

namespace stillmap::python {
namespace {

using publication::attached_memory;

// Whether all of the range is private, so that the device may write it.
bool device_may_write(const attached_memory &m, virtual_range range) {
  const auto mappings = m.device().space().mappings(range);
  return !mappings.empty() && std::all_of(mappings.begin(), mappings.end(), [](const auto &one) {
    return one.state == mapping_state::mapped &&
           std::any_of(one.access.begin(), one.access.end(),
                       [](const access_grant &g) { return g.mode == access_mode::read_write; });
  });
}

struct range_record {
  std::string tag;
  virtual_range mapped;
  std::size_t reserved = 0;
};

std::vector<range_record> ranges_of(const checkpoint::memory_layout &l,
                                    const std::optional<std::string> &tag) {
  std::vector<range_record> out;
  auto place = l.places.begin();
  for (const auto &block : l.blocks) {
    range_record r{block.tag, {block.range.begin, 0}, block.range.bytes};
    for (; place != l.places.end() && block.range.contains(place->at); ++place) {
      if (place->at == r.mapped.end()) r.mapped.bytes += l.pages[place->page].bytes;
    }
    if (!tag || *tag == block.tag) out.push_back(std::move(r));
  }
  return out;
}

nb::list ranges_list(nb::handle self, nb::handle tag) {
  const auto wanted = tag.is_none() ? std::nullopt : std::optional<std::string>(bytes_of(tag));
  const auto found = nb::cast<python_attached &>(self).with(
      [&](const attached_memory &m) -> result<std::vector<range_record>> {
        return ranges_of(m.layout(), wanted);
      });
  nb::list out;
  for (const range_record &r : found) {
    out.append(nb::cast(new attached_range{nb::borrow(self), r.tag, r.mapped, r.reserved},
                        nb::rv_policy::take_ownership));
  }
  return out;
}

nb::bytes metadata_of(const python_attached &self) {
  const auto found = self.with([](const attached_memory &m) -> result<std::vector<std::byte>> {
    return m.published().metadata;
  });
  return nb::bytes(found.data(), found.size());
}

nb::object id_of(const python_attached &self) {
  const auto id = self.with(
      [](const attached_memory &m) -> result<image::sha256> { return m.published().id(); });
  return id.is_zero() ? nb::none() : nb::object(nb::str(id.text().c_str()));
}

template <class Get>
auto number_of_attached(Get get) {
  return [get](const python_attached &self) {
    return self.with([&](const attached_memory &m) -> result<decltype(get(m))> { return get(m); });
  };
}

// Counts a view, and keeps the memory, until the result is gone. Requires: the view was counted.
nb::object hold_of(const nb::object &owner) {
  return nb::cast(new export_hold(owner, nb::cast<python_attached &>(owner).exports()),
                  nb::rv_policy::take_ownership);
}

nb::object hold_attached(nb::handle self) {
  auto &memory = nb::cast<python_attached &>(self);
  memory.with([&](const attached_memory &) -> status {
    memory.count_export();
    return {};
  });
  return hold_of(nb::borrow(self));
}

nb::object range_to_dlpack(const attached_range &self, nb::handle stream, nb::handle max_version,
                           nb::handle dl_device, nb::handle copy) {
  (void)dlpack_stream_of(stream);  // nothing is queued that it would have to order
  const exported_array array = self.memory().describe(self.mapped, true);
  return dlpack_of(array, hold_of(self.owner), max_version, dl_device, copy);
}

nb::object range_to_numpy(const attached_range &self) {
  const device d = value_of(without_gil([&] { return open_device(self.memory().ordinal()); }));
  const exported_array array = self.memory().describe(self.mapped, true);
  return numpy_view_of(array, hold_of(self.owner), d);
}

void bind_range(nb::module_ &m) {
  nb::class_<attached_range>(
      m, "AttachedRange", nb::is_final(),
      "A range of AttachedMemory, as bytes of device memory. A view of it keeps the memory.")
      .def_ro("tag", &attached_range::tag)
      .def_prop_ro("address", [](const attached_range &self) { return self.mapped.begin.value(); })
      .def_prop_ro(
          "nbytes", [](const attached_range &self) { return self.mapped.bytes; },
          "Bytes that are mapped from the start without a gap.")
      .def_ro("reserved", &attached_range::reserved, "Bytes of address space.")
      .def_prop_ro("device", [](const attached_range &self) { return self.memory().ordinal(); })
      .def_prop_ro("__cuda_array_interface__",
                   [](const attached_range &self) {
                     return cuda_array_interface_of(self.memory().describe(self.mapped, false));
                   })
      .def("__dlpack__", &range_to_dlpack, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none())
      .def("__dlpack_device__",
           [](const attached_range &self) { return dlpack_device_of(self.memory().ordinal()); })
      .def("numpy", &range_to_numpy,
           "A NumPy array of the same bytes, on hostcuda. Raises NotSupportedError on a GPU.");
}

}  // namespace

exported_array python_attached::describe(virtual_range range, bool count) {
  return with([&](const attached_memory &m) -> result<exported_array> {
    if (count) count_export();
    return exported_array{range.begin.value(),        range.bytes, {'u', 1, "B"}, ordinal_, {},
                          !device_may_write(m, range)};
  });
}

void bind_attached_memory(nb::module_ &m) {
  bind_range(m);
  nb::class_<python_attached>(
      m, "AttachedMemory", nb::is_final(), nb::is_weak_referenceable(),
      "Memory that another process has published, mapped here at the same addresses. For the "
      "device it is\n"
      "read-only: a write is a fault, from which CUDA does not recover. While this object lives "
      "the "
      "holder\n"
      "keeps the generation for this process; the memory stays if the holder ends.\n"
      "Threads: safe.")
      .def_prop_ro("name", &python_attached::name)
      .def_prop_ro("generation",
                   number_of_attached([](const attached_memory &of) { return of.generation(); }))
      .def_prop_ro("metadata", &metadata_of, "The publisher's bytes.")
      .def_prop_ro("id", &id_of,
                   "SHA-256 of what was published: equal ids mean equal contents. None without "
                   "digests.")
      .def_prop_ro("device", &python_attached::ordinal)
      .def_prop_ro("shared_bytes",
                   number_of_attached([](const attached_memory &of) { return of.shared_bytes(); }),
                   "Of pages that this process shares.")
      .def_prop_ro("private_bytes",
                   number_of_attached([](const attached_memory &of) { return of.private_bytes(); }),
                   "Of pages that this process has copies of: make_writable().")
      .def("ranges", &ranges_list, nb::arg("tag").none() = nb::none(),
           "The ranges, in address order: all, or those of a tag.")
      .def(
          "make_writable",
          [](const python_attached &self, std::uint64_t address, std::size_t nbytes,
             nb::handle stream) {
            const stream_ref s = stream_of(stream);
            self.with([&](attached_memory &of) {
              return of.make_writable({device_address(address), nbytes}, s);
            });
          },
          nb::arg("address"), nb::arg("nbytes"), nb::arg("stream").none() = nb::none(),
          "Gives this process copies of the pages that the range touches, at the same addresses: "
          "the device\n"
          "may write them. Copies on `stream`, and waits for the device. No other stream may have "
          "work queued\n"
          "that writes to the range. Failure: nothing changed. Raises InvalidArgumentError (not "
          "inside one\n"
          "range), BusyError (suspended), OutOfMemoryError.")
      .def("_hold", &hold_attached, "For views: the memory stays until the result is gone.")
      .def(
          "close", [](python_attached &self) { self.close(); },
          "Waits for the device, unmaps the memory and ends the lease. Raises BusyError while a "
          "view lives.")
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](python_attached &self, const nb::args &) { self.close(); },
          nb::arg("args").none())
      .def("__repr__", [](const python_attached &self) {
        return "<stillmap.AttachedMemory '" + self.name() + "' on device " +
               std::to_string(self.ordinal()) + ">";
      });
}

}  // namespace stillmap::python
