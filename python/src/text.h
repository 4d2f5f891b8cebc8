// Names that C++ code or a file chose, as Python's str.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>
#include <vector>

namespace stillmap::python {

namespace nb = nanobind;

// Bytes that are no UTF-8 become lone surrogates ("surrogateescape"), as in the names of files.
inline nb::str str_of(std::string_view s) {
  PyObject *const made =
      PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "surrogateescape");
  if (made == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(made);
}

// The inverse. Throws TypeError for anything but a str.
inline std::string bytes_of(nb::handle text) {
  if (!PyUnicode_Check(text.ptr())) throw nb::type_error("a tag, or a name, is a str");
  PyObject *const made = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape");
  if (made == nullptr) throw nb::python_error();
  const nb::bytes encoded = nb::steal<nb::bytes>(made);
  return {encoded.c_str(), encoded.size()};
}

// One tag, or several.
inline std::vector<std::string> tags_of(nb::handle tags) {
  if (PyUnicode_Check(tags.ptr())) return {bytes_of(tags)};
  std::vector<std::string> out;
  for (const nb::handle tag : tags) out.push_back(bytes_of(tag));
  return out;
}

}  // namespace stillmap::python
