// Bytes of a block or a token in one tensor: eight that say whose they are, and one that follows from these, repeated.
// hostcuda's device memory is the host's.
#pragma once

#include <cstdint>
#include <cstring>

#include "stillmap/vmm/base/units.h"

namespace stillmap::testing {

inline unsigned char filler_of(std::uint64_t word) {
  return static_cast<unsigned char>(word * 0x9E3779B97F4A7C15u >> 56);
}

// Requires: at least 16 bytes.
inline void fill_part(device_address at, std::size_t bytes, std::uint64_t word) {
  std::memset(at.pointer(), filler_of(word), bytes);
  std::memcpy(at.pointer(), &word, sizeof word);
}

inline bool holds_part(device_address at, std::size_t bytes, std::uint64_t word) {
  const auto *const there = static_cast<const unsigned char *>(at.pointer());
  return std::memcmp(there, &word, sizeof word) == 0 && there[sizeof word] == filler_of(word) &&
         std::memcmp(there + sizeof word, there + sizeof word + 1, bytes - sizeof word - 1) == 0;
}

}  // namespace stillmap::testing
