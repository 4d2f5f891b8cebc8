#include "python/src/exports.h"

#include <nanobind/stl/string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/streams.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::python {
namespace {

// DLPack's structures, which are its ABI.
struct dl_device {
  std::int32_t type, id;
};
struct dl_type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct dl_tensor {
  void *data;
  dl_device device;
  std::int32_t dimensions;
  dl_type type;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};
struct dl_managed {
  dl_tensor tensor;
  void *context;
  void (*deleter)(dl_managed *);
};
struct dl_managed_versioned {
  std::uint32_t major, minor;
  void *context;
  void (*deleter)(dl_managed_versioned *);
  std::uint64_t flags;
  dl_tensor tensor;
};
constexpr std::int32_t dl_cuda = 2;
constexpr std::uint64_t dl_read_only = 1;  // of the flags

std::vector<std::int64_t> shape_of(const exported_array &array) {
  if (!array.shape.empty()) return array.shape;
  return {static_cast<std::int64_t>(array.elements)};
}
std::vector<std::int64_t> strides_of(const exported_array &array) {
  return array.shape.empty() ? std::vector<std::int64_t>{1} : array.strides;
}

nb::tuple tuple_of(const std::vector<std::int64_t> &numbers, std::int64_t times = 1) {
  nb::list list;
  for (const std::int64_t n : numbers) list.append(n * times);
  return nb::tuple(list);
}
// In bytes. None where the array is contiguous.
nb::object byte_strides_of(const exported_array &array) {
  if (array.shape.empty()) return nb::none();
  return tuple_of(array.strides, array.type.bytes);
}

// An array on its way: the structure that the consumer sees, with what it points to.
template <class Managed>
struct dl_export {
  static constexpr bool versioned = std::is_same_v<Managed, dl_managed_versioned>;
  static constexpr const char *name = versioned ? "dltensor_versioned" : "dltensor";

  Managed managed{};
  std::vector<std::int64_t> shape, strides;
  PyObject *hold = nullptr;

  // The consumer calls it, with or without the GIL, perhaps after the interpreter's end.
  static void end(Managed *of) {
    auto *const self = static_cast<dl_export *>(of->context);
    if (interpreter_alive()) {
      const held_gil held;
      Py_DECREF(self->hold);
    }
    delete self;
  }
  // A consumer that took the capsule has renamed it.
  static void drop_capsule(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, name) == 0) return;
    auto *const managed = static_cast<Managed *>(PyCapsule_GetPointer(capsule, name));
    managed->deleter(managed);
  }

  static nb::object make(const exported_array &array, nb::object hold) {
    auto made = std::make_unique<dl_export>();
    made->shape = shape_of(array);
    made->strides = strides_of(array);
    dl_tensor &tensor = made->managed.tensor;
    tensor.data = reinterpret_cast<void *>(static_cast<std::uintptr_t>(array.address));
    tensor.device = {dl_cuda, array.device};
    tensor.dimensions = static_cast<std::int32_t>(made->shape.size());
    tensor.type = {array.type.dlpack_code(), static_cast<std::uint8_t>(array.type.bytes * 8), 1};
    tensor.shape = made->shape.data();
    tensor.strides = made->strides.data();
    if constexpr (versioned) {
      made->managed.major = 1;
      if (array.read_only) made->managed.flags |= dl_read_only;
    }
    made->managed.context = made.get();
    made->managed.deleter = end;
    PyObject *const capsule = PyCapsule_New(&made->managed, name, drop_capsule);
    if (capsule == nullptr) throw nb::python_error();
    made->hold = hold.release().ptr();
    (void)made.release();
    return nb::steal(capsule);
  }
};

// Whether this process can read one byte of every 4 KiB of the range, which asks the kernel and not
// the memory: an access would be a fault.
bool readable(std::uint64_t address, std::size_t bytes) {
  constexpr std::size_t step = 4096, most = 1024;
  std::vector<char> bytes_read(most);
  std::vector<iovec> remote;
  for (std::size_t at = 0; at < bytes;) {
    remote.clear();
    for (; at < bytes && remote.size() < most; at += step) {
      remote.push_back({reinterpret_cast<void *>(static_cast<std::uintptr_t>(address + at)), 1});
    }
    const iovec local{bytes_read.data(), remote.size()};
    const ssize_t got = process_vm_readv(getpid(), &local, 1, remote.data(), remote.size(), 0);
    if (got != static_cast<ssize_t>(remote.size())) return false;
  }
  return true;
}

status check_readable(const exported_array &array, const device &d) {
  constexpr const char *op = "numpy";
  if (!d.driver().is_simulator()) {
    return make_python_error(
        errc::not_supported, op,
        "the memory is a GPU's: copy it with to_host() or copy_to_host(), or use a "
        "library for GPUs");
  }
  const context_guard entered(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(entered.entered());
  STILLMAP_RETURN_IF_ERROR(d.driver().synchronize_context());
  if (!readable(array.address, array.span_bytes())) {
    return make_python_error(
        errc::not_supported, op,
        "the host cannot read all of the memory: it is suspended, not committed, or "
        "hostcuda runs without memory behind its pages");
  }
  return {};
}

// What NumPy takes an array from, and keeps as its base.
struct host_array {
  exported_array array;
  nb::object hold;
};

}  // namespace

std::size_t exported_array::span_bytes() const {
  if (elements == 0 || shape.empty()) return elements * type.bytes;
  std::size_t last = 0;
  for (std::size_t i = 0; i < shape.size(); ++i)
    last += static_cast<std::size_t>((shape[i] - 1) * strides[i]);
  return (last + 1) * type.bytes;
}

nb::dict cuda_array_interface_of(const exported_array &array) {
  nb::dict d;
  d["shape"] = tuple_of(shape_of(array));
  d["typestr"] = array.type.typestr();
  d["data"] = nb::make_tuple(array.elements == 0 ? 0 : array.address, array.read_only);
  d["version"] = 3;
  d["strides"] = byte_strides_of(array);
  if (!array.stream) {
    d["stream"] = nb::none();
  } else {
    const std::uint64_t number = number_of(*array.stream);
    d["stream"] = number == 0 ? 1 : number;  // 0 is not allowed; 1 is the legacy default stream
  }
  return d;
}

nb::tuple dlpack_device_of(int device) {
  return nb::make_tuple(dl_cuda, device);
}

std::optional<stream_ref> dlpack_stream_of(nb::handle stream) {
  if (PyLong_Check(stream.ptr())) {
    const long number = PyLong_AsLong(stream.ptr());
    if (number == -1) {
      if (PyErr_Occurred() != nullptr)
        PyErr_Clear();  // a large handle
      else
        return std::nullopt;
    }
    if (number == 0) {
      throw nb::value_error(
          "__dlpack__: the stream 0 is ambiguous: pass 1 (legacy) or 2 (per thread)");
    }
    if (number == 1) return stream_ref::legacy();
  }
  return stream_of(stream);
}

nb::object dlpack_of(const exported_array &array, nb::object hold, nb::handle max_version,
                     nb::handle dl_device, nb::handle copy) {
  if (copy.is(Py_True)) {
    throw nb::buffer_error("__dlpack__: Stillmap exports views only; copy the result");
  }
  if (!dl_device.is_none() && !dl_device.equal(dlpack_device_of(array.device))) {
    throw nb::buffer_error("__dlpack__: the memory is on another device");
  }
  const bool versioned =
      !max_version.is_none() && nb::cast<std::uint32_t>(nb::object(max_version[0])) >= 1;
  if (versioned) return dl_export<dl_managed_versioned>::make(array, std::move(hold));
  if (array.read_only) {
    throw nb::buffer_error(
        "__dlpack__: the memory is read-only, which only a capsule with a version can say: pass "
        "max_version=(1, 0), or call make_writable() first");
  }
  return dl_export<dl_managed>::make(array, std::move(hold));
}

nb::object numpy_view_of(const exported_array &array, nb::object hold, const device &d) {
  check(without_gil([&] { return check_readable(array, d); }));
  const nb::object numpy = nb::module_::import_("numpy");
  return numpy.attr("asarray")(
      nb::cast(new host_array{array, std::move(hold)}, nb::rv_policy::take_ownership));
}

void bind_exports(nb::module_ &m) {
  nb::class_<export_hold>(m, "_ExportHold", nb::is_final());
  nb::class_<host_array>(m, "_HostArray", nb::is_final())
      .def_prop_ro("__array_interface__", [](const host_array &self) {
        nb::dict d;
        d["shape"] = tuple_of(shape_of(self.array));
        d["typestr"] = self.array.type.typestr();
        d["data"] = nb::make_tuple(self.array.address, self.array.read_only);
        d["strides"] = byte_strides_of(self.array);
        d["version"] = 3;
        return d;
      });
}

}  // namespace stillmap::python
