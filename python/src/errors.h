// Stillmap's errors as Python's exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "stillmap/vmm/base/error.h"

namespace stillmap::python {

namespace nb = nanobind;

// Adds the classes of exceptions to the module.
void bind_errors(nb::module_ &m);

// The exception object for an error. Requires the GIL, as all below.
nb::object exception_of(const error &e);
[[noreturn]] void raise(const error &e);
// An InvalidArgumentError of the Python interface itself.
[[noreturn]] void raise_invalid(const char *operation, const char *reason);

template <class T>
T value_of(result<T> r) {
  if (!r) raise(r.error());
  return std::move(*r);
}
inline nb::str string_of(result<std::string> text) {
  const std::string made = value_of(std::move(text));
  return nb::str(made.data(), made.size());
}
inline void check(const status &s) {
  if (!s) raise(s.error());
}

}  // namespace stillmap::python
