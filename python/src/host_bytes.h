// Host memory of Python objects: the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

namespace stillmap::python {

namespace nb = nanobind;

// The contiguous bytes of bytes, bytearray, memoryview, a NumPy array ... Locked while it lives.
// Throws TypeError, BufferError (not contiguous). With the GIL.
class host_bytes {
 public:
  explicit host_bytes(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ND | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) !=
        0) {
      throw nb::python_error();
    }
  }
  host_bytes(const host_bytes &) = delete;
  host_bytes &operator=(const host_bytes &) = delete;
  ~host_bytes() { PyBuffer_Release(&view_); }

  const void *data() const { return view_.buf; }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }
  const char *format() const { return view_.format; }
  std::size_t item_bytes() const { return static_cast<std::size_t>(view_.itemsize); }

 private:
  Py_buffer view_{};
};

}  // namespace stillmap::python
