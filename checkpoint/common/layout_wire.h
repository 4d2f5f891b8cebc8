// Serialises memory layouts for another process.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"

namespace stillmap::checkpoint {

// Limit of an encoded layout. Larger ones are refused before memory is allocated for them.
inline constexpr std::size_t largest_layout = std::size_t{256} << 20;

std::vector<std::byte> encode(const memory_layout &l);

// Checks each field by itself; call check() for the consistency of the layout.
// Errors: corrupt.
result<memory_layout> decode_layout(std::span<const std::byte> from);

// References alone, as a layout has them. Errors: corrupt.
std::vector<std::byte> encode(const std::vector<published_reference> &l);
result<std::vector<published_reference>> decode_references(std::span<const std::byte> from);

}  // namespace stillmap::checkpoint
