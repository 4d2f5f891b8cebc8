#include "stillmap/vmm/base/utf8.h"

namespace stillmap::utf8 {

character first_of(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead < 0xc2   ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
  if (length == 0 || length > text.size()) return {};
  char32_t point = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    point = point << 6 | (byte(i) & 0x3fu);
  }
  // Forms that are too long, surrogates, and what Unicode does not have.
  constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (point < least[length] || (point >= 0xd800 && point < 0xe000) || point > 0x10ffff) return {};
  return {point, length};
}

void append(std::string &to, char32_t point) {
  const auto add = [&](char32_t bits) { to += static_cast<char>(bits); };
  if (point < 0x80) {
    add(point);
  } else if (point < 0x800) {
    add(0xc0 | point >> 6);
    add(0x80 | (point & 0x3f));
  } else if (point < 0x10000) {
    add(0xe0 | point >> 12);
    add(0x80 | (point >> 6 & 0x3f));
    add(0x80 | (point & 0x3f));
  } else {
    add(0xf0 | point >> 18);
    add(0x80 | (point >> 12 & 0x3f));
    add(0x80 | (point >> 6 & 0x3f));
    add(0x80 | (point & 0x3f));
  }
}

bool is_control(char32_t c) noexcept {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace stillmap::utf8

namespace stillmap {

std::string valid_utf8(std::string_view text) {
  std::string out;
  for (utf8::character c; !text.empty(); text.remove_prefix(c.bytes)) {
    c = utf8::first_of(text);
    utf8::append(out, c.point);
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  for (utf8::character c; !text.empty(); text.remove_prefix(c.bytes)) {
    c = utf8::first_of(text);
    utf8::append(out, utf8::is_control(c.point) ? U'?' : c.point);
  }
  return out;
}

}  // namespace stillmap
