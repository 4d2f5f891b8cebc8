#include "python/src/vector.h"

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {

using detail::byte_vector;

std::size_t python_vector::bytes_of(std::size_t elements) const {
  return elements > SIZE_MAX / type_.bytes ? SIZE_MAX : elements * type_.bytes;
}

status python_vector::refuse_growth(const char *op, const byte_vector &b, std::size_t bytes,
                                    bool relocate) const {
  const std::size_t all = bytes > SIZE_MAX - b.size() ? SIZE_MAX : b.size() + bytes;
  return refuse_move(op, b.buffer(), all, relocate);
}

std::size_t python_vector::size() const {
  return with([&](const byte_vector &b) -> result<std::size_t> { return b.size() / type_.bytes; });
}

void python_vector::append(const void *from, std::size_t bytes, bool relocate) {
  with([&](byte_vector &b) -> status {
    const bool one = bytes == type_.bytes;
    const char *const op = one ? "DeviceVector.append" : "DeviceVector.extend";
    STILLMAP_RETURN_IF_ERROR(refuse_growth(op, b, bytes, relocate));
    return one ? b.push(from, bytes) : b.append(from, bytes, true);
  });
}

void python_vector::insert(std::size_t at, const void *from, std::size_t bytes, bool relocate) {
  with([&](byte_vector &b) -> status {
    STILLMAP_RETURN_IF_ERROR(refuse_growth("DeviceVector.insert", b, bytes, relocate));
    return b.insert(bytes_of(at), bytes, from, {});
  });
}

void python_vector::write(std::size_t at, const void *from, std::size_t bytes) {
  with([&](byte_vector &b) {
    const operation_scope scope("device_vector::set");
    return b.write(bytes_of(at), from, bytes);
  });
}

void python_vector::append_from_device(device_address from, std::size_t elements, stream_ref after,
                                       bool relocate) {
  with([&](byte_vector &b) -> status {
    STILLMAP_RETURN_IF_ERROR(refuse_growth("DeviceVector.extend", b, bytes_of(elements), relocate));
    if (after != b.stream()) {
      STILLMAP_ASSIGN_OR_RETURN(const fence ready, fence::after(device_, after));
      STILLMAP_RETURN_IF_ERROR(ready.make_wait(device_, b.stream()));
    }
    return b.append_from_device(from, bytes_of(elements), true);
  });
}

nb::bytes python_vector::read(std::size_t at, std::size_t elements) const {
  const std::size_t bytes = bytes_of(elements);
  PyObject *const to = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes));
  if (to == nullptr) throw nb::python_error();
  nb::bytes made = nb::steal<nb::bytes>(to);
  char *const room = PyBytes_AsString(to);
  with([&](byte_vector &b) {
    const operation_scope scope("device_vector::to_host");
    return b.read(bytes_of(at), room, bytes);
  });
  return made;
}

void python_vector::resize(std::size_t elements, bool zero, bool relocate) {
  const std::size_t bytes = bytes_of(elements);
  with([&](byte_vector &b) -> status {
    if (bytes < b.size()) STILLMAP_RETURN_IF_ERROR(refuse_exported());
    STILLMAP_RETURN_IF_ERROR(refuse_move("DeviceVector.resize", b.buffer(), bytes, relocate));
    return b.resize(bytes, zero);
  });
}

void python_vector::erase(std::size_t at, std::size_t elements) {
  with([&](byte_vector &b) -> status {
    STILLMAP_RETURN_IF_ERROR(refuse_exported());
    return b.erase(bytes_of(at), bytes_of(elements));
  });
}

void python_vector::reserve(std::size_t elements, bool relocate) {
  with([&](byte_vector &b) -> status {
    STILLMAP_RETURN_IF_ERROR(
        refuse_move("DeviceVector.reserve", b.buffer(), bytes_of(elements), relocate));
    return b.reserve(bytes_of(elements));
  });
}

void python_vector::shrink_to_fit(bool relocate) {
  with([&](byte_vector &b) -> status {
    STILLMAP_RETURN_IF_ERROR(refuse_shrink("DeviceVector.shrink_to_fit", b.buffer(), relocate));
    return b.shrink_to_fit();
  });
}

exported_array python_vector::describe(bool count, std::optional<stream_ref> consumer) {
  return with([&](byte_vector &b) -> result<exported_array> {
    STILLMAP_RETURN_IF_ERROR(b.flush());
    if (consumer && *consumer != b.stream()) {
      STILLMAP_ASSIGN_OR_RETURN(const fence ready, fence::after(device_, b.stream()));
      STILLMAP_RETURN_IF_ERROR(ready.make_wait(device_, *consumer));
    }
    show_address();
    if (count) count_export();
    return exported_array{b.buffer().address().value(), b.size() / type_.bytes, type_,
                          device_.ordinal(), b.stream()};
  });
}

}  // namespace stillmap::python
