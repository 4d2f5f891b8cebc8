// Message kinds and bodies of the handoff protocol. Every field is checked when it is decoded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stillmap/checkpoint/common/layout_wire.h"

namespace stillmap::handoff {

enum class kind : std::uint16_t {
  hello = 1,
  layout,  // with the descriptor of the ownership word
  pages,   // descriptors, in the order of the layout's pages
  ready,   // with a pidfd of the receiver, where the kernel has them
  offer,
  committed,
  error,
};

enum class role : std::uint32_t { sender = 1, receiver = 2 };

struct hello {
  role as = role::sender;
  std::array<unsigned char, 16> device{};
  std::uint64_t page_bytes = 0;
};

std::vector<std::byte> encode(const hello &h);

// Errors: corrupt.
result<hello> decode_hello(std::span<const std::byte> from);

}  // namespace stillmap::handoff
