// The class GrowableBuffer: arguments and results of python_buffer.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/src/buffer.h"
#include "python/src/devices.h"
#include "python/src/host_bytes.h"
#include "python/src/streams.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::python {
namespace {

void construct_buffer(python_buffer *self, std::size_t nbytes, int ordinal, std::size_t reserve,
                      const std::string &tag, std::size_t map_ahead,
                      const std::vector<int> &peer_devices, std::uint64_t hint, bool exportable,
                      std::size_t page_size) {
  buffer_options options;
  options.reserve_bytes = reserve;
  options.tag = tag;
  options.hint = device_address(hint);
  options.map_ahead_bytes = map_ahead;
  options.peer_devices = peer_devices;
  new (self) python_buffer(value_of(without_gil([&]() -> result<growable_buffer> {
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    if (exportable || page_size != 0) {
      page_pool_options pages;
      pages.page_bytes = page_size;
      if (exportable) pages.exportable = handle_type::posix_fd;
      STILLMAP_ASSIGN_OR_RETURN(auto pool, page_pool::create(d, pages));
      options.pools.push_back(std::move(pool));
    }
    STILLMAP_ASSIGN_OR_RETURN(auto made, growable_buffer::create(d, std::move(options)));
    if (nbytes != 0) STILLMAP_RETURN_IF_ERROR(made.resize(nbytes));
    return made;
  })));
}

nb::object owned(growable_buffer b) {
  return nb::cast(new python_buffer(std::move(b)), nb::rv_policy::take_ownership);
}

// One number of the buffer.
template <class Get>
auto number(Get get) {
  return [get](const python_buffer &self) {
    return self.with([&](const growable_buffer &b) -> result<decltype(get(b))> { return get(b); });
  };
}

void copy_from_host(const python_buffer &self, nb::handle data, std::size_t offset,
                    nb::handle stream) {
  const host_bytes from(data);
  const stream_ref s = stream_of(stream);
  self.with(
      [&](growable_buffer &b) { return b.copy_from_host(offset, from.data(), from.size(), s); });
}

nb::object copy_to_host(const python_buffer &self, nb::handle nbytes, std::size_t offset,
                        nb::handle stream) {
  constexpr const char *op = "GrowableBuffer.copy_to_host";
  const stream_ref s = stream_of(stream);
  const bool all = nbytes.is_none();
  const std::size_t given = all ? 0 : nb::cast<std::size_t>(nbytes);
  // Before the host's memory is allocated.
  const std::size_t bytes = self.with([&](const growable_buffer &b) -> result<std::size_t> {
    const std::size_t most = all ? b.size() : b.reserved();
    if (offset > most || given > most - offset) {
      return make_python_error(errc::invalid_argument, op, "the range ends behind the buffer",
                               offset + given, most, error_unit::bytes);
    }
    return all ? most - offset : given;
  });
  nb::object to = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
  if (!to.is_valid()) throw nb::python_error();
  char *const room = PyBytes_AsString(to.ptr());
  self.with([&](const growable_buffer &b) { return b.copy_to_host(room, offset, bytes, s); });
  return to;
}

nb::dict stats_of(const python_buffer &self) {
  struct figures {
    buffer_stats stats;
    std::size_t mapped;
    std::uint64_t generation;
  };
  const auto f = self.with([](const growable_buffer &b) -> result<figures> {
    return figures{b.stats(), b.mapped_bytes(), b.generation()};
  });
  nb::dict d;
  d["growths"] = f.stats.growths;
  d["ahead_growths"] = f.stats.ahead_growths;
  d["ahead_failures"] = f.stats.ahead_failures;
  d["relocations"] = f.stats.relocations;
  d["bytes_copied"] = f.stats.bytes_copied;
  d["mapped_bytes"] = f.mapped;
  d["generation"] = f.generation;
  return d;
}

// Counts an export of the object `self` until the result is gone.
nb::object hold(nb::handle self, python_buffer &buffer) {
  return nb::cast(new export_hold(nb::borrow(self), buffer.exports()),
                  nb::rv_policy::take_ownership);
}

nb::object buffer_to_dlpack(nb::handle self, nb::handle stream, nb::handle max_version,
                            nb::handle dl_device, nb::handle copy) {
  auto &buffer = nb::cast<python_buffer &>(self);
  (void)dlpack_stream_of(stream);  // the buffer has no queued work that it would have to order
  const exported_array array = buffer.describe(true);
  return dlpack_of(array, hold(self, buffer), max_version, dl_device, copy);
}

nb::object buffer_to_numpy(nb::handle self) {
  auto &buffer = nb::cast<python_buffer &>(self);
  const device d = value_of(without_gil([&] { return open_device(buffer.ordinal()); }));
  const exported_array array = buffer.describe(true);
  return numpy_view_of(array, hold(self, buffer), d);
}

void bind_size(nb::class_<python_buffer> &c) {
  c.def(
       "resize",
       [](python_buffer &self, std::size_t nbytes, nb::handle stream, bool relocate) {
         self.resize(nbytes, optional_stream_of(stream), relocate);
       },
       nb::arg("nbytes"), nb::arg("stream").none() = nb::ellipsis(), nb::kw_only(),
       nb::arg("relocate") = false,
       "Changes nbytes. Growing maps pages at the end: the address and the contents stay. "
       "Shrinking\n"
       "keeps the pages (shrink_to_fit). With a stream, it may wait, and new bytes are first used "
       "on\n"
       "it; without one the host waits. relocate: the address may change to grow past `reserved`; "
       "whoever\n"
       "has it must then use the new one. Raises OutOfMemoryError; InvalidArgumentError (past "
       "`reserved`\n"
       "without relocate); BusyError if a view is exported and the buffer would shrink or move.")
      .def(
          "reserve",
          [](python_buffer &self, std::size_t nbytes, nb::handle stream, bool relocate) {
            self.reserve(nbytes, optional_stream_of(stream), relocate);
          },
          nb::arg("nbytes"), nb::arg("stream").none() = nb::ellipsis(), nb::kw_only(),
          nb::arg("relocate") = false,
          "Maps pages until capacity is at least `nbytes`. relocate and errors as resize().")
      .def("shrink_to_fit", &python_buffer::shrink_to_fit, nb::kw_only(),
           nb::arg("relocate") = false,
           "Gives back the pages past nbytes. Waits for the device's work. relocate: needed where "
           "in_place\n"
           "is False, because the address changes there.")
      .def("commit", &python_buffer::commit, nb::arg("offset"), nb::arg("nbytes"),
           "Maps a range of the reservation, in multiples of page_bytes.")
      .def(
          "decommit",
          [](python_buffer &self, std::size_t offset, std::size_t nbytes) {
            self.with([&](growable_buffer &b) -> status {
              STILLMAP_RETURN_IF_ERROR(self.refuse_exported());
              return b.decommit(offset, nbytes);
            });
          },
          nb::arg("offset"), nb::arg("nbytes"), "Unmaps a range. Waits for the device's work.")
      .def_prop_ro(
          "address", [](python_buffer &self) { return self.describe(false).address; },
          "Constant for life, unless it is changed with relocate=True.")
      .def_prop_ro("nbytes", number([](const growable_buffer &b) { return b.size(); }))
      .def_prop_ro("capacity", number([](const growable_buffer &b) { return b.capacity(); }),
                   "Bytes that are mapped from the start without a gap.")
      .def_prop_ro("reserved", number([](const growable_buffer &b) { return b.reserved(); }),
                   "Bytes of address space.")
      .def_prop_ro("page_bytes", number([](const growable_buffer &b) { return b.page_bytes(); }))
      .def_prop_ro("in_place", number([](const growable_buffer &b) { return b.in_place(); }),
                   "False where the device has no virtual memory management, and growing copies.")
      .def_prop_ro("tag", &python_buffer::tag)
      .def_prop_ro("device", &python_buffer::ordinal)
      .def("stats", &stats_of, "Counters since the buffer was made.");
}

void bind_pages(nb::class_<python_buffer> &c) {
  c.def("copy_from_host", &copy_from_host, nb::arg("data"), nb::arg("offset") = 0,
        nb::arg("stream").none() = nb::none(),
        "Copies contiguous bytes into the buffer, after the stream's work; waits for the copy.")
      .def("copy_to_host", &copy_to_host, nb::arg("nbytes").none() = nb::none(),
           nb::arg("offset") = 0, nb::arg("stream").none() = nb::none(),
           "The bytes of a range (default: all), after the stream's work.")
      .def(
          "alias",
          [](const python_buffer &self, std::size_t offset, std::size_t nbytes, std::size_t times) {
            return owned(self.with(
                [&](const growable_buffer &b) { return b.alias(offset, nbytes, times); }));
          },
          nb::arg("offset"), nb::arg("nbytes"), nb::arg("times") = 1,
          "A buffer of the same pages at other addresses, `times` in a row: twice is a ring.")
      .def(
          "fork",
          [](python_buffer &self) {
            return owned(self.with([&](growable_buffer &b) -> result<growable_buffer> {
              STILLMAP_RETURN_IF_ERROR(self.refuse_exported());
              return b.fork();
            }));
          },
          "A copy that shares all pages. Both are read-only until make_writable().")
      .def(
          "make_writable",
          [](python_buffer &self, std::size_t offset, std::size_t nbytes, nb::handle stream) {
            const stream_ref s = stream_of(stream);
            self.with([&](growable_buffer &b) { return b.make_writable(offset, nbytes, s); });
          },
          nb::arg("offset"), nb::arg("nbytes"), nb::arg("stream").none() = nb::none(),
          "Copies pages of the range that are still shared with a fork, at the same address.");
}

void bind_views(nb::class_<python_buffer> &c) {
  c.def_prop_ro("__cuda_array_interface__",
                [](python_buffer &self) { return cuda_array_interface_of(self.describe(false)); })
      .def("__dlpack__", &buffer_to_dlpack, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none())
      .def("__dlpack_device__",
           [](const python_buffer &self) { return dlpack_device_of(self.ordinal()); })
      .def("numpy", &buffer_to_numpy,
           "A NumPy view of the bytes, on hostcuda only. Raises NotSupportedError on a GPU.");
}

}  // namespace

void bind_buffer(nb::module_ &m) {
  nb::class_<python_buffer> c(
      m, "GrowableBuffer", nb::is_final(), nb::is_weak_referenceable(),
      "Device memory that grows in place: its address stays, and nothing is copied.\n"
      "Threads: safe. While a view is exported (DLPack, numpy()), what would unmap or move its "
      "memory\n"
      "raises BusyError. Users of the address and of __cuda_array_interface__ are not counted: "
      "only "
      "calls\n"
      "that say so (close, shrink_to_fit, decommit, relocate=True) take memory from them.");
  c.def(
      "__init__", &construct_buffer, nb::arg("nbytes") = 0, nb::kw_only(), nb::arg("device") = 0,
      nb::arg("reserve") = 0, nb::arg("tag") = "", nb::arg("map_ahead") = 0,
      nb::arg("peer_devices") = std::vector<int>{}, nb::arg("hint") = 0,
      nb::arg("exportable") = false, nb::arg("page_size") = 0,
      "reserve: bytes of address space, which cost no memory: so many, or an error. 0: as much as\n"
      "the device has memory, or less where many buffers share the addresses.\n"
      "map_ahead: bytes that a thread keeps mapped beyond nbytes. hint: the preferred address, "
      "for\n"
      "memory that another process restores (docs/python.md). exportable: the pages can be given "
      "to "
      "other\n"
      "processes, as publish() does; NotSupportedError where they cannot. page_size: bytes of a "
      "page, a\n"
      "multiple of device_info()['page_bytes'], which is the default.");
  bind_size(c);
  bind_pages(c);
  bind_views(c);
  c.def(
       "close", [](python_buffer &self) { self.close(); },
       "Waits for the device and releases the memory. Raises BusyError while a view is exported.")
      .def("__len__", number([](const growable_buffer &b) { return b.size(); }))
      .def("__bool__", [](const python_buffer &) { return true; })
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](python_buffer &self, const nb::args &) { self.close(); },
          nb::arg("args").none())
      .def("__repr__", [](const python_buffer &self) {
        return "<stillmap.GrowableBuffer '" + self.tag() + "' on device " +
               std::to_string(self.ordinal()) + ">";
      });
}

}  // namespace stillmap::python
