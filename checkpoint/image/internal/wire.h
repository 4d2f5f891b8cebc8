// Loads and stores little-endian numbers at byte offsets, and reads hexadecimal ids.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "stillmap/checkpoint/image/digest.h"

namespace stillmap::image {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian; a big-endian host must swap bytes here");

// Requires, for both: the field is inside the bytes.
template <class T>
std::remove_const_t<T> load(bytes_view from, std::size_t at) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::remove_const_t<T> value{};
  std::memcpy(&value, from.data() + at, sizeof value);
  return value;
}

template <class T>
void store(std::span<std::byte> to, std::size_t at, const T &value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(to.data() + at, &value, sizeof value);
}

// Reads what fixed_bytes::text() writes. False: another text.
template <class Bytes>
bool parse(std::string_view text, Bytes &into) {
  if (text.size() != 2 * into.bytes.size()) return false;
  for (std::size_t i = 0; i < into.bytes.size(); ++i) {
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

// Rounds up to a multiple of block_bytes. Requires: no overflow.
constexpr std::uint64_t to_block(std::uint64_t n) {
  return (n + block_bytes - 1) / block_bytes * block_bytes;
}

}  // namespace stillmap::image
