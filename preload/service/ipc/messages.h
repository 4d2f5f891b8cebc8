// What importer and exporter say to each other. Both are processes of one machine with one version of the library, so
// numbers are sent as they lie in memory; the handle's magic has a version.
//
//   importer                          exporter
//   open(memory_handle)          ->
//                                <-   opened(opened_block), or refused(driver_code)
//   next                         ->                                                   until it has all pages
//                                <-   pages, with a descriptor each, or refused(driver_code)
//   its end of the connection         keeps the block until the connection ends
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

#include "stillmap/checkpoint/base/socket_channel.h"

namespace stillmap::preload {

enum class ipc_message : std::uint16_t { open = 1, opened, next, pages, refused };

struct opened_block {
  std::uint64_t page_bytes = 0;
  std::uint64_t pages = 0;                 // under the block
  std::array<unsigned char, 16> device{};  // its UUID
};

// For each message, either way.
inline constexpr std::chrono::milliseconds ipc_message_timeout{10'000};
inline constexpr std::size_t max_ipc_message_bytes = 64;
// So many descriptors, each side needs free at once.
inline constexpr std::size_t max_ipc_message_pages = 32;

template <class Body>
std::span<const std::byte> body_of(const Body &b) noexcept {
  static_assert(std::has_unique_object_representations_v<Body> &&
                sizeof(Body) <= max_ipc_message_bytes);
  return std::as_bytes(std::span<const Body, 1>(&b, 1));
}

// Nothing: the message is of another kind, or not of this size.
template <class Body>
std::optional<Body> parse_body(const checkpoint::socket_message &m, ipc_message kind) noexcept {
  if (m.kind != static_cast<std::uint16_t>(kind) || m.body.size() != sizeof(Body)) {
    return std::nullopt;
  }
  Body b;
  std::memcpy(&b, m.body.data(), sizeof b);
  return b;
}

}  // namespace stillmap::preload
