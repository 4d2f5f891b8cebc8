// Serialises memory layouts and errors for another process.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"

namespace stillmap::checkpoint {

// Limit of an encoded layout. Larger ones are refused before memory is allocated for them.
inline constexpr std::size_t largest_layout = std::size_t{256} << 20;

std::vector<std::byte> encode(const memory_layout &l);
// The condition, the value with its unit, and the text of operation and reason. At most
// `largest_peer_error` bytes.
std::vector<std::byte> encode(const error &e);
inline constexpr std::size_t largest_peer_error = 1024;

// Checks each field by itself; call check() for the consistency of the layout.
// Errors: corrupt.
result<memory_layout> decode_layout(std::span<const std::byte> from);

// The reason of every error that was received from the other process.
inline constexpr const char *peer_refused = "the peer refused";
// An encoded error as an error of `operation`, with the reason `peer_refused` and the peer's text
// as its cause. Bytes that are no encoded error become `corrupt`.
error decode_peer_error(std::span<const std::byte> from, const char *operation);

}  // namespace stillmap::checkpoint
