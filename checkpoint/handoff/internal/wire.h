// What goes over the socket, as bytes: fixed little-endian numbers, every field checked when read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stillmap/checkpoint/common/internal/layout_wire.h"

namespace stillmap::handoff {

enum class kind : std::uint16_t {
  hello = 1,
  layout,  // with the ticket
  pages,   // descriptors, in the order of the layout's pages
  ready,   // with a descriptor that tells the taker's death, where the kernel has such
  offer,
  taken,
  refusal,
};

enum class role : std::uint32_t { giver = 1, taker = 2 };

struct hello {
  role as = role::giver;
  std::array<unsigned char, 16> device{};
  std::uint64_t page_bytes = 0;
};

std::vector<std::byte> encode(const hello &h);

// Errors: corrupt.
result<hello> decode_hello(std::span<const std::byte> from);

}  // namespace stillmap::handoff
