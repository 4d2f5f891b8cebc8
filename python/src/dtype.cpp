#include "python/src/dtype.h"

#include <nanobind/stl/string.h>

#include <array>
#include <bit>
#include <string_view>

namespace stillmap::python {
namespace {

static_assert(std::endian::native == std::endian::little);

struct known_type {
  element_type type;
  const char *name;
};
constexpr auto known_types() {
  return std::array{
      known_type{{'b', 1, "?"}, "bool"},      known_type{{'i', 1, "b"}, "int8"},
      known_type{{'i', 2, "h"}, "int16"},     known_type{{'i', 4, "i"}, "int32"},
      known_type{{'i', 8, "q"}, "int64"},     known_type{{'u', 1, "B"}, "uint8"},
      known_type{{'u', 2, "H"}, "uint16"},    known_type{{'u', 4, "I"}, "uint32"},
      known_type{{'u', 8, "Q"}, "uint64"},    known_type{{'f', 2, "e"}, "float16"},
      known_type{{'f', 4, "f"}, "float32"},   known_type{{'f', 8, "d"}, "float64"},
      known_type{{'c', 8, "f"}, "complex64"}, known_type{{'c', 16, "d"}, "complex128"},
  };
}

// "float32"; "<f4", where the byte order may be left out; "f".
const element_type *find_type(std::string_view text) {
  static constexpr auto all = known_types();
  if (text.starts_with('<') || text.starts_with('=') || text.starts_with('|')) {
    text.remove_prefix(1);
  }
  for (const known_type &known : all) {
    const std::string code = known.type.kind + std::to_string(known.type.bytes);
    if (text == known.name || text == code) return &known.type;
    if (text == known.type.format && known.type.kind != 'c') return &known.type;
  }
  if (text == "float") return find_type("f8");
  if (text == "int") return find_type("i8");
  if (text == "complex" || text == "D") return find_type("c16");
  if (text == "F") return find_type("c8");
  return nullptr;
}

[[noreturn]] void raise_not_a_type(nb::handle given) {
  PyErr_Format(PyExc_TypeError,
               "an element type is a name such as 'float32', 'i8' or 'bool', or a dtype of these, "
               "not %R",
               given.ptr());
  throw nb::python_error();
}

nb::object struct_function(const char *name) {
  return nb::module_::import_("struct").attr(name);
}

std::string format_of(const element_type &type, std::size_t elements) {
  return "<" + std::to_string(type.kind == 'c' ? 2 * elements : elements) + type.format;
}

}  // namespace

std::string element_type::name() const {
  static constexpr auto all = known_types();
  for (const known_type &known : all) {
    if (known.type == *this) return known.name;
  }
  return typestr();
}

std::string element_type::typestr() const {
  return (bytes == 1 ? "|" : "<") + std::string(1, kind) + std::to_string(bytes);
}

std::uint8_t element_type::dlpack_code() const {
  switch (kind) {
    case 'i':
      return 0;
    case 'u':
      return 1;
    case 'f':
      return 2;
    case 'c':
      return 5;
    default:
      return 6;  // bool
  }
}

element_type element_type_of(nb::handle given) {
  std::string text;
  if (PyUnicode_Check(given.ptr())) {
    text = nb::cast<std::string>(given);
  } else if (nb::isinstance<nb::str>(nb::getattr(given, "str", nb::none()))) {  // numpy.dtype
    text = nb::cast<std::string>(given.attr("str"));
  } else if (PyType_Check(given.ptr())) {  // numpy.float32, float
    text = nb::cast<std::string>(given.attr("__name__"));
  } else {
    raise_not_a_type(given);
  }
  const element_type *const found = find_type(text);
  if (found == nullptr) raise_not_a_type(given);
  return *found;
}

element_type element_type_of_format(const char *format, std::size_t item_bytes) {
  const std::string_view given = format == nullptr ? "B" : format;
  std::string_view code = given;
  if (code.starts_with('<') || code.starts_with('=') || code.starts_with('@')) {
    code.remove_prefix(1);
  }
  char kind = 0;
  if (code == "?") kind = 'b';
  if (code.size() == 1 && std::string_view("bhilqn").find(code[0]) != code.npos) kind = 'i';
  if (code.size() == 1 && std::string_view("BHILQNc").find(code[0]) != code.npos) kind = 'u';
  if (code.size() == 1 && std::string_view("efd").find(code[0]) != code.npos) kind = 'f';
  if (code == "Zf" || code == "Zd") kind = 'c';
  const element_type *const found =
      kind == 0 ? nullptr : find_type(kind + std::to_string(item_bytes));
  if (found == nullptr) {
    const std::string text =
        "elements of the format '" + std::string(given) + "' are not supported";
    throw nb::type_error(text.c_str());
  }
  return *found;
}

nb::bytes pack(const element_type &type, nb::handle numbers) {
  nb::list arguments;
  arguments.append(nb::none());  // the format, which needs the count
  std::size_t elements = 0;
  for (const nb::handle number : numbers) {
    ++elements;
    if (type.kind == 'c') {
      const double real = PyComplex_RealAsDouble(number.ptr());
      const double imaginary =
          PyErr_Occurred() != nullptr ? 0 : PyComplex_ImagAsDouble(number.ptr());
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      arguments.append(real);
      arguments.append(imaginary);
    } else {
      arguments.append(number);
    }
  }
  arguments[0] = format_of(type, elements);
  return nb::bytes(struct_function("pack")(*arguments));
}

nb::list unpack(const element_type &type, const nb::bytes &bytes) {
  const std::size_t elements = bytes.size() / type.bytes;
  const nb::object numbers = struct_function("unpack")(format_of(type, elements), bytes);
  nb::list list;
  if (type.kind != 'c') {
    list.extend(numbers);
    return list;
  }
  for (std::size_t i = 0; i < elements; ++i) {
    PyObject *const number = PyComplex_FromDoubles(nb::cast<double>(numbers[2 * i]),
                                                   nb::cast<double>(numbers[2 * i + 1]));
    if (number == nullptr) throw nb::python_error();
    list.append(nb::steal(number));
  }
  return list;
}

}  // namespace stillmap::python
