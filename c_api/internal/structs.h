// Structs that cross the C API carry their size, so that they can grow: the rule of Linux's extensible system calls.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "stillmap/c_api/internal/entry.h"

namespace stillmap::c_api {

// A larger struct than this is no later version of any.
inline constexpr std::size_t largest_struct = 4096;

// Copies what the caller has of a struct with `known` bytes; the rest is zero. nullptr: all of it.
// Errors: invalid_argument (its struct_size is no size of a struct: value, limit), not_supported (what this
//         library does not know of it is not zero: value, limit).
status read_struct(const void *given, void *into, std::size_t known) noexcept;
// Whether a struct for results is there and has a valid size. Errors: invalid_argument.
status check_struct(const void *given, std::size_t known) noexcept;
// Writes what the caller has room for, but for struct_size; what this library does not know of it is zero.
void write_struct(void *given, const void *values, std::size_t known) noexcept;

template <class Struct>
result<Struct> read_struct(const Struct *given) noexcept {
  Struct read{};
  if (status s = read_struct(given, &read, sizeof read); !s) return tl::unexpected(s.error());
  return read;
}
template <class Struct>
void write_struct(Struct *given, const Struct &values) noexcept {
  if (given != nullptr) write_struct(given, &values, sizeof values);
}
// For a struct that the caller may leave out.
template <class Struct>
status check_optional_struct(const Struct *given) noexcept {
  return given == nullptr ? status{} : check_struct(given, sizeof *given);
}

// A text of the caller's; "" for NULL. May throw std::bad_alloc.
inline std::string text_of(const char *given) {
  return given != nullptr ? given : "";
}
// Errors: invalid_argument (NULL with a count, NULL among them, more than there can be). May throw std::bad_alloc.
result<std::vector<std::string>> texts_of(const char *const *given, std::size_t count);
result<std::vector<int>> ordinals_of(const int *given, std::size_t count);

// One of the numbers 0 to `last`. Errors: invalid_argument (value, limit).
status check_choice(std::uint32_t given, std::uint32_t last, const char *reason) noexcept;

// A text that the caller frees. Errors: out_of_memory (of the host).
result<char *> owned_text(const std::string &text) noexcept;

}  // namespace stillmap::c_api
