// Contents that somebody chose so that a hash without a secret takes them for equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace stillmap::testing {

// Two chunks with the same XXH3-128, and the same in each 4,096 bytes: two of their words of 8 bytes
// have the default secret's in the lower half, so that the products are 0 whatever the upper halves
// are, and only the sum of these counts.
inline std::pair<std::vector<std::byte>, std::vector<std::byte>> colliding_chunks(
    std::size_t bytes) {
  const auto with = [&](std::uint32_t first, std::uint32_t second) {
    const std::uint32_t words[2][2] = {{0x396CFEB8, first}, {0x2C81017C, second}};
    std::vector<std::byte> chunk(bytes, std::byte{7});
    std::memcpy(chunk.data(), words[0], sizeof words[0]);
    std::memcpy(chunk.data() + 64, words[1], sizeof words[1]);
    return chunk;
  };
  return {with(1, 2), with(2, 1)};
}

}  // namespace stillmap::testing
