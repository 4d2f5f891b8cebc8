// Little-endian numbers at places in bytes.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "stillmap/checkpoint/image/digest.h"

namespace stillmap::image {

static_assert(std::endian::native == std::endian::little,
              "a big-endian host would have to turn the numbers around here");

// Requires of all: the field lies inside.
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

// Next multiple of a block. Requires: no overflow, as for everything inside a file.
constexpr std::uint64_t to_block(std::uint64_t n) {
  return (n + block_bytes - 1) / block_bytes * block_bytes;
}

}  // namespace stillmap::image
