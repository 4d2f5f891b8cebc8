// The class DeviceVector: arguments and results of python_vector.
#include <nanobind/stl/string.h>

#include <algorithm>

#include "python/src/attribute.h"
#include "python/src/devices.h"
#include "python/src/host_bytes.h"
#include "python/src/streams.h"
#include "python/src/vector.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

// The position of an index, which may count from the end. Raises IndexError.
std::size_t position_of(const python_vector &self, Py_ssize_t index) {
  const auto size = static_cast<Py_ssize_t>(self.size());
  const Py_ssize_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) throw nb::index_error("DeviceVector: the index is out of range");
  return static_cast<std::size_t>(at);
}

[[noreturn]] void raise_other_type(const python_vector &self, const element_type &given) {
  const std::string text = "the vector has elements of " + self.type().name() +
                           ", the values are " + given.name() + ": convert them first";
  throw nb::type_error(text.c_str());
}

// An array of another library, by __cuda_array_interface__.
void extend_from_device(python_vector &self, nb::handle values, bool relocate) {
  const nb::dict array = nb::cast<nb::dict>(nb::object(values.attr("__cuda_array_interface__")));
  const element_type type = element_type_of(nb::object(array["typestr"]));
  if (!(type == self.type())) raise_other_type(self, type);
  if (array.contains("strides") && !nb::object(array["strides"]).is_none()) {
    throw nb::buffer_error("DeviceVector.extend: the array is not contiguous");
  }
  std::size_t elements = 1;
  for (const nb::handle extent : nb::object(array["shape"])) {
    elements *= nb::cast<std::size_t>(extent);
  }
  const auto address = nb::cast<std::uint64_t>(nb::object(nb::object(array["data"])[0]));
  const nb::object stream = array.contains("stream") ? nb::object(array["stream"]) : nb::none();
  const stream_ref after = stream.is_none() || nb::cast<std::uint64_t>(stream) == 1
                               ? stream_ref::legacy()
                               : stream_of(stream);
  self.append_from_device(device_address(address), elements, after, relocate);
}

// Calls use(bytes, size) with the host's bytes of values: an array of the element type, or numbers.
template <class Use>
void with_bytes(const python_vector &self, nb::handle values, Use use) {
  if (PyObject_CheckBuffer(values.ptr()) != 0) {
    const host_bytes from(values);
    const element_type type = element_type_of_format(from.format(), from.item_bytes());
    if (!(type == self.type())) raise_other_type(self, type);
    use(from.data(), from.size());
    return;
  }
  const nb::bytes packed = pack(self.type(), values);
  use(packed.c_str(), packed.size());
}

void extend(python_vector &self, nb::handle values, bool relocate) {
  if (attribute_of(values, "__cuda_array_interface__")) {
    return extend_from_device(self, values, relocate);
  }
  with_bytes(self, values,
             [&](const void *from, std::size_t n) { self.append(from, n, relocate); });
}

void construct_vector(python_vector *self, nb::handle dtype, nb::handle values, int ordinal,
                      nb::handle stream, const std::string &tag, std::size_t reserve) {
  const element_type type = element_type_of(dtype);
  const stream_ref s = stream_of(stream);
  buffer_options options;
  options.tag = tag;
  options.reserve_bytes = reserve > SIZE_MAX / type.bytes ? SIZE_MAX : reserve * type.bytes;
  struct parts {
    device d;
    detail::byte_vector bytes;
  };
  parts made = value_of(without_gil([&]() -> result<parts> {
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    STILLMAP_ASSIGN_OR_RETURN(
        auto bytes, detail::byte_vector::create(d, std::move(options), s, std::size_t{1} << 18));
    return parts{d, std::move(bytes)};
  }));
  auto *const vector =
      new (self) python_vector(std::move(made.d), std::move(made.bytes), type, tag);
  if (values.is_none()) return;
  try {
    extend(*vector, values, false);
  } catch (...) {
    vector->~python_vector();
    throw;
  }
}

nb::object memoryview_of(const element_type &type, const nb::bytes &bytes) {
  const nb::object view = nb::steal(PyMemoryView_FromObject(bytes.ptr()));
  if (!view.is_valid()) throw nb::python_error();
  if (type.kind == 'c' || (type.kind == 'f' && type.bytes == 2)) return view;  // it knows neither
  return view.attr("cast")(type.format);
}

nb::object item_at(const python_vector &self, std::size_t at) {
  return nb::object(unpack(self.type(), self.read(at, 1))[0]);
}

nb::object get_item(const python_vector &self, nb::handle index) {
  if (!PySlice_Check(index.ptr()))
    return item_at(self, position_of(self, nb::cast<Py_ssize_t>(index)));
  const auto [start, stop, step, count] = nb::cast<nb::slice>(index).compute(self.size());
  (void)stop;
  if (step != 1) throw nb::value_error("DeviceVector: the step of a slice is 1");
  return memoryview_of(self.type(), self.read(static_cast<std::size_t>(start), count));
}

void set_item(python_vector &self, Py_ssize_t index, nb::handle value) {
  const std::size_t at = position_of(self, index);
  const nb::bytes packed = pack(self.type(), nb::make_tuple(value));
  self.write(at, packed.c_str(), packed.size());
}

void insert_values(python_vector &self, Py_ssize_t index, nb::handle values, bool relocate) {
  const auto size = static_cast<Py_ssize_t>(self.size());
  const Py_ssize_t at =
      std::clamp(index < 0 ? index + size : index, Py_ssize_t{0}, size);  // as list
  if (PySequence_Check(values.ptr()) == 0) {                              // one number
    const nb::bytes packed = pack(self.type(), nb::make_tuple(values));
    return self.insert(static_cast<std::size_t>(at), packed.c_str(), packed.size(), relocate);
  }
  with_bytes(self, values, [&](const void *from, std::size_t n) {
    self.insert(static_cast<std::size_t>(at), from, n, relocate);
  });
}

nb::object pop_item(python_vector &self, Py_ssize_t index) {
  const std::size_t at = position_of(self, index);
  nb::object value = item_at(self, at);
  self.erase(at, 1);
  return value;
}

void bind_elements(nb::class_<python_vector> &c) {
  c.def(
       "append",
       [](python_vector &self, nb::handle value, bool relocate) {
         const nb::bytes packed = pack(self.type(), nb::make_tuple(value));
         self.append(packed.c_str(), packed.size(), relocate);
       },
       nb::arg("value").none(), nb::kw_only(), nb::arg("relocate") = false,
       "Adds one element, gathered in pinned host memory and sent with others, or by flush().\n"
       "relocate, here and below: the address may change to grow past the reservation, as with\n"
       "GrowableBuffer.resize(); without it that raises InvalidArgumentError.")
      .def("extend", &extend, nb::arg("values"), nb::kw_only(), nb::arg("relocate") = false,
           "Adds numbers, an array of the element type (buffer protocol), or one in device memory\n"
           "(__cuda_array_interface__). Waits for the copy.")
      .def("insert", &insert_values, nb::arg("index"), nb::arg("values"), nb::kw_only(),
           nb::arg("relocate") = false,
           "Inserts a number, numbers, or an array before the element at `index`.")
      .def("pop", &pop_item, nb::arg("index") = -1, "Removes an element and returns it.")
      .def(
          "erase",
          [](python_vector &self, std::size_t start, std::size_t count) {
            self.erase(start, count);
          },
          nb::arg("start"), nb::arg("count") = 1, "Removes elements; those behind move up.")
      .def(
          "clear", [](python_vector &self) { self.resize(0, false, false); },
          "Removes all elements.")
      .def("resize", &python_vector::resize, nb::arg("size"), nb::kw_only(), nb::arg("zero") = true,
           nb::arg("relocate") = false,
           "Changes the number of elements; new ones are 0, or unspecified.")
      .def("reserve", &python_vector::reserve, nb::arg("size"), nb::kw_only(),
           nb::arg("relocate") = false, "Maps memory for `size` elements.")
      .def("shrink_to_fit", &python_vector::shrink_to_fit, nb::kw_only(),
           nb::arg("relocate") = false,
           "Gives back whole pages past the end. relocate as GrowableBuffer.shrink_to_fit().")
      .def("__len__", &python_vector::size)
      .def("__getitem__", &get_item, nb::arg("index"))
      .def("__setitem__", &set_item, nb::arg("index"), nb::arg("value").none())
      .def(
          "to_host",
          [](const python_vector &self, std::size_t start, nb::handle stop) {
            const std::size_t end = stop.is_none() ? self.size() : nb::cast<std::size_t>(stop);
            return memoryview_of(self.type(), self.read(start, end > start ? end - start : 0));
          },
          nb::arg("start") = 0, nb::arg("stop").none() = nb::none(),
          "A copy as a memoryview of the element type; of bytes for float16 and complex numbers.\n"
          "numpy.frombuffer(v.to_host(), v.dtype) makes an array of it.")
      .def(
          "tolist",
          [](const python_vector &self) { return unpack(self.type(), self.read(0, self.size())); },
          "The elements as Python's numbers.");
}

void bind_state(nb::class_<python_vector> &c) {
  const auto number = [](auto get) {
    return [get](const python_vector &self) {
      return self.with([&](const detail::byte_vector &b) -> result<decltype(get(self, b))> {
        return get(self, b);
      });
    };
  };
  using self_type = const python_vector &;
  using bytes_type = const detail::byte_vector &;
  c.def_prop_ro("address", number([](self_type v, bytes_type b) {
                  v.show_address();
                  return b.buffer().address().value();
                }),
                "Of the first element. Call flush() before other work reads appended elements.")
      .def_prop_ro("nbytes", number([](self_type, bytes_type b) { return b.size(); }))
      .def_prop_ro("capacity", number([](self_type v, bytes_type b) {
                     return b.buffer().capacity() / v.type().bytes;
                   }))
      .def_prop_ro("stream", number([](self_type, bytes_type b) { return number_of(b.stream()); }))
      .def_prop_ro("dtype", [](self_type v) { return v.type().name(); })
      .def_prop_ro("itemsize", [](self_type v) { return static_cast<int>(v.type().bytes); })
      .def_prop_ro("tag", &python_vector::tag)
      .def_prop_ro("device", [](self_type v) { return v.device().ordinal(); })
      .def(
          "set_stream",
          [](python_vector &self, nb::handle stream) {
            const stream_ref s = stream_of(stream);
            self.with([&](detail::byte_vector &b) { return b.set_stream(s); });
          },
          nb::arg("stream").none(), "Work from now on goes to `stream`, behind that queued so far.")
      .def(
          "flush",
          [](python_vector &self) { self.with([](detail::byte_vector &b) { return b.flush(); }); },
          "Queues appended elements that are still on the host.")
      .def(
          "synchronize",
          [](python_vector &self) {
            self.with([](detail::byte_vector &b) { return b.synchronize(); });
          },
          "flush(), and waits for the stream.")
      .def(
          "close", [](python_vector &self) { self.close(); },
          "Waits for the device and releases the memory. Raises BusyError while a view is "
          "exported.")
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](python_vector &self, const nb::args &) { self.close(); },
          nb::arg("args").none())
      .def("__repr__", [](const python_vector &self) {
        return "<stillmap.DeviceVector of " + self.type().name() + " on device " +
               std::to_string(self.device().ordinal()) + ">";
      });
}

nb::object hold_vector(nb::handle self, python_vector &vector) {
  return nb::cast(new export_hold(nb::borrow(self), vector.exports()),
                  nb::rv_policy::take_ownership);
}

void bind_vector_views(nb::class_<python_vector> &c) {
  c.def_prop_ro("__cuda_array_interface__",
                [](python_vector &self) {
                  return cuda_array_interface_of(self.describe(false, std::nullopt));
                })
      .def(
          "__dlpack__",
          [](nb::handle self, nb::handle stream, nb::handle max_version, nb::handle dl_device,
             nb::handle copy) {
            auto &vector = nb::cast<python_vector &>(self);
            const exported_array array = vector.describe(true, dlpack_stream_of(stream));
            return dlpack_of(array, hold_vector(self, vector), max_version, dl_device, copy);
          },
          nb::kw_only(), nb::arg("stream").none() = nb::none(),
          nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
          nb::arg("copy").none() = nb::none())
      .def("__dlpack_device__",
           [](const python_vector &self) { return dlpack_device_of(self.device().ordinal()); })
      .def(
          "numpy",
          [](nb::handle self) {
            auto &vector = nb::cast<python_vector &>(self);
            const exported_array array = vector.describe(true, std::nullopt);
            return numpy_view_of(array, hold_vector(self, vector), vector.device());
          },
          "A NumPy view of the elements, on hostcuda only. Raises NotSupportedError on a GPU.");
}

}  // namespace

void bind_vector(nb::module_ &m) {
  nb::class_<python_vector> c(m, "DeviceVector", nb::is_final(), nb::is_weak_referenceable(),
                              "Elements in device memory: the address stays, and growing copies "
                              "nothing. All work is queued\n"
                              "on its stream. Threads: safe. Views as those of GrowableBuffer.");
  c.def(
      "__init__", &construct_vector, nb::arg("dtype"), nb::arg("values").none() = nb::none(),
      nb::kw_only(), nb::arg("device") = 0, nb::arg("stream").none() = nb::none(),
      nb::arg("tag") = "", nb::arg("reserve") = 0,
      "dtype: a name as NumPy has it, or a dtype: bool, (u)int8 to 64, float16 to 64, complex64 "
      "and\n"
      "128. reserve: elements of address space, or an error; 0: as the device has memory, or less "
      "where\n"
      "many share the addresses. Failure of any call leaves size, elements and capacity as they "
      "were.");
  bind_elements(c);
  bind_state(c);
  bind_vector_views(c);
}

}  // namespace stillmap::python
