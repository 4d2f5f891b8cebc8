// An attribute that an object may not have.
#pragma once

#include <nanobind/nanobind.h>

namespace stillmap::python {

// Empty where there is none. What else a getter raises is raised: nb::hasattr() would hide it.
inline nanobind::object attribute_of(nanobind::handle of, const char *name) {
  PyObject *const found = PyObject_GetAttrString(of.ptr(), name);
  if (found == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) nanobind::raise_python_error();
    PyErr_Clear();
  }
  return nanobind::steal(found);
}

}  // namespace stillmap::python
