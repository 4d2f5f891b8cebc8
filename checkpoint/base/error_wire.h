// Serialises errors for another process.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stillmap/vmm/base/error.h"

namespace stillmap::checkpoint {

// The condition, the value with its unit, and the text of operation and reason. At most
// `largest_peer_error` bytes.
std::vector<std::byte> encode(const error &e);
inline constexpr std::size_t largest_peer_error = 1024;

// The reason of every error that was received from the other process.
inline constexpr const char *peer_refused = "the peer refused";
// An encoded error as an error of `operation`, with the reason `peer_refused` and the peer's text
// as its cause. Bytes that are no encoded error become `corrupt`.
error decode_peer_error(std::span<const std::byte> from);

}  // namespace stillmap::checkpoint
