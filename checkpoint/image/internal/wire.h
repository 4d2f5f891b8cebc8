// Loads and stores little-endian numbers at byte offsets.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "stillmap/checkpoint/base/aligned_memory.h"
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

static_assert(block_bytes % checkpoint::io_block_bytes == 0);  // so that parts are written directly

// Rounds up to a multiple of block_bytes. Requires: no overflow.
constexpr std::uint64_t to_block(std::uint64_t n) {
  return (n + block_bytes - 1) / block_bytes * block_bytes;
}

}  // namespace stillmap::image
