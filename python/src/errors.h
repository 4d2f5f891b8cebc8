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
// What an exception of a callback means to the library: its class's, busy for one that is not of Stillmap.
errc code_of(nb::handle exception);
[[noreturn]] void raise(const error &e);
// An error of the Python interface itself; `operation` names the Python function.
tl::unexpected<error> make_python_error(errc c, const char *operation, const char *reason,
                                        std::uint64_t value = 0, std::uint64_t limit = 0,
                                        error_unit unit = error_unit::none) noexcept;
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
