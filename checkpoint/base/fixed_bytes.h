// Ids, digests and keys: a fixed number of bytes, with a type for each use.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <string>
#include <string_view>

namespace stillmap::checkpoint {

// N bytes, compared lexicographically. `Tag` makes each use a type of its own.
// text() allocates host memory: may throw std::bad_alloc.
template <std::size_t N, class Tag>
struct fixed_bytes {
  std::array<std::byte, N> bytes{};

  bool is_zero() const { return *this == fixed_bytes{}; }
  std::string text() const {  // 2 N hexadecimal digits, in lower case
    static constexpr char digits[] = "0123456789abcdef";
    std::string t;
    for (const std::byte b : bytes) {
      t += digits[std::to_integer<unsigned>(b) >> 4];
      t += digits[std::to_integer<unsigned>(b) & 15];
    }
    return t;
  }
  auto operator<=>(const fixed_bytes &) const = default;
};

// Reads what text() writes. False: another text; then `into` has no meaning.
template <std::size_t N, class Tag>
bool parse_hex(std::string_view text, fixed_bytes<N, Tag> &into) {
  if (text.size() != 2 * N) return false;
  for (std::size_t i = 0; i < N; ++i) {
    unsigned value = 0;
    for (const char c : {text[2 * i], text[2 * i + 1]}) {
      const bool letter = c >= 'a' && c <= 'f';
      if (!letter && (c < '0' || c > '9')) return false;
      value = value * 16 + static_cast<unsigned>(letter ? c - 'a' + 10 : c - '0');
    }
    into.bytes[i] = static_cast<std::byte>(value);
  }
  return true;
}

}  // namespace stillmap::checkpoint
