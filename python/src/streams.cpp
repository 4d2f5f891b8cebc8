#include "python/src/streams.h"

#include <cstdint>
#include <utility>

#include "python/src/attribute.h"

namespace stillmap::python {
namespace {

stream_ref stream_of_number(nb::handle number) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  return stream_ref(reinterpret_cast<stream_handle>(static_cast<std::uintptr_t>(value)));
}

[[noreturn]] void raise_not_a_stream(nb::handle given) {
  PyErr_Format(
      PyExc_TypeError,
      "a stream is None, an integer or an object with __cuda_stream__, cuda_stream, handle "
      "or ptr, not %R",
      given.ptr());
  throw nb::python_error();
}

bool is_number(nb::handle h) {
  return PyLong_Check(h.ptr()) && !PyBool_Check(h.ptr());
}

// A handle is an integer, an object that converts to one, or a ctypes.c_void_p, whose null is None.
stream_ref stream_of_handle(nb::handle given, nb::handle handle) {
  if (is_number(handle)) return stream_of_number(handle);
  nb::object inner = nb::borrow(handle);
  if (nb::object value = attribute_of(handle, "value")) inner = std::move(value);
  if (inner.is_none()) return stream_ref::legacy();
  PyObject *const number = PyNumber_Check(inner.ptr()) ? PyNumber_Long(inner.ptr()) : nullptr;
  if (number == nullptr) {
    PyErr_Clear();
    raise_not_a_stream(given);
  }
  return stream_of_number(nb::steal(number));
}

}  // namespace

stream_ref stream_of(nb::handle given) {
  if (given.is_none()) return stream_ref::legacy();
  if (is_number(given)) return stream_of_number(given);
  if (PyBool_Check(given.ptr()) || PyFloat_Check(given.ptr())) raise_not_a_stream(given);
  // A method of an instance, not of the class: cuda.core's protocol, (version 0, handle).
  nb::object answer;
  if (PyType_Check(given.ptr()) == 0) answer = attribute_of(given, "__cuda_stream__");
  if (answer) {
    if (PyCallable_Check(answer.ptr()) != 0) answer = answer();
    if (PySequence_Check(answer.ptr()) == 0 || PySequence_Size(answer.ptr()) != 2) {
      PyErr_Clear();
      raise_not_a_stream(given);
    }
    return stream_of_handle(given, nb::object(answer[1]));
  }
  for (const char *const name : {"cuda_stream", "handle", "ptr"}) {
    if (const nb::object handle = attribute_of(given, name)) return stream_of_handle(given, handle);
  }
  raise_not_a_stream(given);
}

std::optional<stream_ref> optional_stream_of(nb::handle given) {
  if (given.is(nb::ellipsis())) return std::nullopt;
  return stream_of(given);
}

std::uint64_t number_of(stream_ref s) {
  return reinterpret_cast<std::uintptr_t>(s.get());
}

void bind_streams(nb::module_ &m) {
  m.def(
      "stream_handle", [](nb::handle stream) { return number_of(stream_of(stream)); },
      nb::arg("stream").none(),
      "The handle (a CUstream, as a number) of a stream of any library: None is the legacy "
      "default\n"
      "stream, 0. Takes __cuda_stream__, cuda_stream, handle and ptr. Raises TypeError.");
}

}  // namespace stillmap::python
