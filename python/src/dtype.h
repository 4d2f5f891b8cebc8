// Element types, named as NumPy does: "float32", "<f4", "i8", "complex64".
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace stillmap::python {

namespace nb = nanobind;

struct element_type {
  char kind = 'u';              // NumPy's: b, i, u, f, c
  std::uint8_t bytes = 1;       // of an element
  const char *format = "B";     // of the struct module; a complex number is two of them
  std::string name() const;     // "float32"
  std::string typestr() const;  // "<f4": the CPU and the GPU are little-endian
  std::uint8_t dlpack_code() const;
  bool operator==(const element_type &o) const { return kind == o.kind && bytes == o.bytes; }
};

// Of a name, of numpy.dtype or of a scalar type of NumPy or Python.
// Throws TypeError for anything else.
element_type element_type_of(nb::handle given);

// Of a format of the buffer protocol (null: bytes). Throws TypeError for one with several fields.
element_type element_type_of_format(const char *format, std::size_t item_bytes);

// The bytes of numbers, by the struct module. Throws TypeError, struct.error (a number out of range).
nb::bytes pack(const element_type &type, nb::handle numbers);
// The reverse, as a list.
nb::list unpack(const element_type &type, const nb::bytes &bytes);

}  // namespace stillmap::python
