// Text that another process or a file chose, made fit for a document or a terminal. Internal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stillmap::utf8 {

inline constexpr char32_t replacement = 0xfffd;

struct character {
  char32_t point = replacement;  // also of a byte that belongs to no valid character
  std::size_t bytes = 1;
};

// The first character of a text. Requires: !text.empty().
character first_of(std::string_view text) noexcept;

// Appends the character's bytes. Requires: `point` is a Unicode scalar value.
void append(std::string &to, char32_t point);

// Whether a terminal or a viewer takes it for a command, or for an instruction on the order of the
// text around it: control characters, line and paragraph separators, bidirectional controls.
bool is_control(char32_t point) noexcept;

}  // namespace stillmap::utf8

namespace stillmap {

// The text as valid UTF-8: U+FFFD for each byte that belongs to no character.
std::string valid_utf8(std::string_view text);

// The text as one line for a terminal: valid UTF-8 without control characters, each of which is
// replaced by '?'.
std::string printable(std::string_view text);

}  // namespace stillmap
