#include "python/src/kv_tensor.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "python/src/devices.h"
#include "python/src/errors.h"
#include "python/src/gil.h"

namespace stillmap::python {
namespace {

struct kv_tensor {
  nb::object owner;
  kv_exporter *arena;  // the owner's
  kv_place place;
  exported_array array;  // without the count

  // Of blocks, or of tokens.
  std::size_t rows_axis() const { return place.tensor ? 0 : 1; }
};

// Counts an export of the arena until the result is gone.
nb::object hold_of(const kv_tensor &of) {
  return nb::cast(new export_hold(of.owner, of.arena->count_of_exports()),
                  nb::rv_policy::take_ownership);
}

nb::tuple numbers_of(const std::vector<std::int64_t> &numbers) {
  nb::list list;
  for (const std::int64_t n : numbers) list.append(n);
  return nb::tuple(list);
}

nb::object kv_tensor_to_dlpack(const kv_tensor &self, nb::handle stream, nb::handle max_version,
                               nb::handle dl_device, nb::handle copy) {
  (void)dlpack_stream_of(stream);  // the arena has no queued work that it would have to order
  const exported_array array = self.arena->describe(self.place, true);
  return dlpack_of(array, hold_of(self), max_version, dl_device, copy);
}

nb::object kv_tensor_to_numpy(const kv_tensor &self, std::size_t start,
                              std::optional<std::size_t> stop) {
  const std::size_t axis = self.rows_axis();
  const auto rows = static_cast<std::size_t>(self.array.shape[axis]);
  const std::size_t end = stop.value_or(rows);
  if (start > end || end > rows) {
    raise(make_python_error(errc::invalid_argument, "KVTensor.numpy",
                            "the range ends behind the tensor, or before its start",
                            start > end ? start : end, rows, error_unit::items)
              .value());
  }
  const device d = value_of(without_gil([&] { return open_device(self.arena->ordinal()); }));
  exported_array array = self.arena->describe(self.place, true);
  const nb::object hold = hold_of(self);
  array.address +=
      start * static_cast<std::size_t>(array.strides[axis]) * std::size_t{array.type.bytes};
  array.shape[axis] = static_cast<std::int64_t>(end - start);
  array.elements = array.elements / rows * (end - start);
  return numpy_view_of(array, hold, d);
}

}  // namespace

nb::object kv_tensor_of(nb::object owner, kv_exporter &arena, const kv_place &place) {
  exported_array array = arena.describe(place, false);
  return nb::cast(new kv_tensor{std::move(owner), &arena, place, std::move(array)},
                  nb::rv_policy::take_ownership);
}

void bind_kv_tensor(nb::module_ &m) {
  nb::class_<kv_tensor>(
      m, "KVTensor", nb::is_final(),
      "A strided view of one tensor of a KV arena, which it keeps alive. It covers all addresses: "
      "only\n"
      "those of blocks that were allocated, or of the tokens that a sequence has capacity for, "
      "have\n"
      "memory, and an access to others is an illegal access of the device. The address is "
      "constant; "
      "while\n"
      "a DLPack view exists, close() of the arena raises BusyError.")
      .def_prop_ro("address", [](const kv_tensor &self) { return self.array.address; })
      .def_prop_ro("shape", [](const kv_tensor &self) { return numbers_of(self.array.shape); })
      .def_prop_ro(
          "strides", [](const kv_tensor &self) { return numbers_of(self.array.strides); },
          "In elements.")
      .def_prop_ro("dtype", [](const kv_tensor &self) { return self.array.type.name(); })
      .def_prop_ro("itemsize", [](const kv_tensor &self) { return self.array.type.bytes; })
      .def_prop_ro("device", [](const kv_tensor &self) { return self.array.device; })
      .def_prop_ro("arena", [](const kv_tensor &self) { return self.owner; })
      .def_prop_ro("__cuda_array_interface__",
                   [](const kv_tensor &self) {
                     return cuda_array_interface_of(self.arena->describe(self.place, false));
                   })
      .def("__dlpack__", &kv_tensor_to_dlpack, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none())
      .def("__dlpack_device__",
           [](const kv_tensor &self) { return dlpack_device_of(self.array.device); })
      .def("numpy", &kv_tensor_to_numpy, nb::arg("start") = 0, nb::arg("stop").none() = nb::none(),
           "A NumPy view of the blocks (or tokens) [start, stop), on hostcuda only. Raises "
           "NotSupportedError\n"
           "on a GPU, and where some of them have no memory.")
      .def("__repr__", [](const kv_tensor &self) {
        return "<stillmap.KVTensor of layer " + std::to_string(self.place.layer) + " on device " +
               std::to_string(self.array.device) + ">";
      });
}

}  // namespace stillmap::python
