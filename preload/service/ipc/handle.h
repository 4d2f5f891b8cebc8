// What a CUipcMemHandle of Stillmap's memory holds: where the process listens that has the block, and which block it
// is. The driver's own handles do not begin with the magic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "preload/functions/abi.h"

namespace stillmap::preload {

struct memory_handle {
  static constexpr std::array<char, 8> own_magic{'S', 'M', 'i', 'p', 'c', 'm', '0', '1'};

  std::array<char, 8> magic = own_magic;
  std::int32_t process =
      0;  // of the exporter, in its PID namespace: with `server` its socket's name
  std::uint32_t unused = 0;
  std::uint64_t server = 0;            // random
  std::uint64_t block = 0;             // a number that the exporter uses once
  std::uint64_t offset = 0;            // of the block in its first page, in bytes
  std::uint64_t bytes = 0;             // of the block
  std::array<std::byte, 16> secret{};  // who has it has been given the handle

  bool operator==(const memory_handle &) const = default;
  // Of the exporter's socket, which is abstract: it goes with the process.
  // Errors: throws std::bad_alloc.
  std::string address() const;
};
static_assert(sizeof(memory_handle) == sizeof(bytes_64) &&
              std::has_unique_object_representations_v<memory_handle>);

// The handle in these bytes; nothing: another one, such as the driver's.
std::optional<memory_handle> parse_handle(const bytes_64 &from) noexcept;

}  // namespace stillmap::preload
