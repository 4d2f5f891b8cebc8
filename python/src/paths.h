// Files that Python names.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "stillmap/vmm/base/error.h"

namespace stillmap::python {

namespace nb = nanobind;

// The name: of a str, bytes or os.PathLike, in the file system's encoding. Throws TypeError for anything else,
// ValueError for a null character.
inline std::string path_of(nb::handle given) {
  PyObject *encoded = nullptr;
  if (PyUnicode_FSConverter(given.ptr(), &encoded) == 0) throw nb::python_error();
  const nb::bytes bytes = nb::steal<nb::bytes>(encoded);
  return {bytes.c_str(), bytes.size()};
}

// Replaces a file that exists. Without the GIL. Errors: the system's, naming the path.
status write_file(const char *operation, const std::string &path, const std::string &contents);

}  // namespace stillmap::python
