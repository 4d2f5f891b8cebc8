// Names of files, as Python passes them.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace stillmap::python {

namespace nb = nanobind;

// Of a str, bytes or os.PathLike, in the file system's encoding. Throws TypeError for anything else,
// ValueError for a null character.
inline std::string path_of(nb::handle given) {
  PyObject *encoded = nullptr;
  if (PyUnicode_FSConverter(given.ptr(), &encoded) == 0) throw nb::python_error();
  const nb::bytes bytes = nb::steal<nb::bytes>(encoded);
  return {bytes.c_str(), bytes.size()};
}

}  // namespace stillmap::python
